#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
srun bash -c 'torchrun --nproc-per-node 4 --nnodes $SLURM_NNODES train.py --node $SLURM_PROCID'
