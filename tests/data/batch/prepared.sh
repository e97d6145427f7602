#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
GPUS=4
python prepare.py
CMD="torchrun --nproc-per-node $GPUS --nnodes \$SLURM_NNODES train.py --data $SCRATCH/x --total $((GPUS * SLURM_NNODES))"
echo python $CMD
srun bash -c "$CMD"
