#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-task=l40s:1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-gpu=16G
#SBATCH --time=00:15:00
set -o errexit
module --quiet purge
module load cuda/12.2.2
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
mkdir -p $SLURM_TMPDIR/data
srun --ntasks-per-node=1 --ntasks=2 cp -r /network/cifar $SLURM_TMPDIR/data
uv sync
srun uv run python main.py --dist-backend nccl --data "$SLURM_TMPDIR/data" --tag ${TAG:-base}
