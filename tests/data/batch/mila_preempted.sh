#!/bin/bash
#SBATCH --gres=gpu:a100l:2
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH -c 12
#SBATCH --mem=64Gb
#SBATCH --partition=long
#SBATCH --time=2-00:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
set -euo pipefail
exit_script() { echo "preempted"; trap - SIGTERM; kill 0; }
trap exit_script SIGTERM
module load miniconda/3
conda activate torch
unset LD_PRELOAD
rsync -a $SCRATCH/imagenet.sqfs $SLURM_TMPDIR/
export GPUS_PER_NODE=$(nvidia-smi -L | wc -l)
HEAD=$(scontrol show hostname $SLURM_JOB_NODELIST | head -n 1)
export LAUNCHER="accelerate launch --num_processes $((SLURM_NNODES * 2)) --num_machines $SLURM_NNODES --mixed_precision bf16 --rdzv_backend c10d --main_process_ip $HEAD --main_process_port 29501"
export SCRIPT="examples/train.py"
export ARGS="--data $SLURM_TMPDIR/imagenet.sqfs --epochs 90"
srun --export=ALL,WANDB_MODE=offline $LAUNCHER --machine_rank \$SLURM_PROCID $SCRIPT $ARGS &
wait
echo "done at $(date)"
