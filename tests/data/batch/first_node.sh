#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1

export COORDINATOR=$(hostname -s)
export SCRATCH_COPY=$(mktemp -d)
srun python train.py --lr 0.1
