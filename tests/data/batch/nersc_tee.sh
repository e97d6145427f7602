#!/bin/bash
#SBATCH -A m4000
#SBATCH -C gpu&hbm80g
#SBATCH -q shared
#SBATCH -t 30
#SBATCH -N 2
#SBATCH --ntasks-per-node 4
#SBATCH --gpus-per-task=1
#SBATCH --gpu-bind=none
#SBATCH -c 32
#SBATCH -o out-%j.txt
#SBATCH --licenses=scratch
#SBATCH --time-min=00:10:00
config_file=./config/vit.yaml
config="default"
run_num="00"
module load pytorch/2.3.1
export HDF5_USE_FILE_LOCKING=FALSE
export SLURM_CPU_BIND="cores"
export MASTER_ADDR=$(hostname)
[ -d ckpt ] || mkdir ckpt
set -x
srun -l -u bash -c "
    python train_mp.py --config=${config} --run_num=$run_num --yaml $config_file --seed ${1:-42}
" 2>&1 | tee train.log
