#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
function makehostfile() {
perl -e '$slots=split /,/, $ENV{"SLURM_STEP_GPUS"}; print "x"'
}
makehostfile > hostfile
case "$MODEL" in
  small) LR=1e-3 ;;
  *) LR=1e-4 ;;
esac
deepspeed --num_nodes 2 --num_gpus 4 --hostfile hostfile --master_port 9901 train.py --deepspeed --deepspeed_config ds.json --user "$USER"
