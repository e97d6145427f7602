#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
srun --ntasks-per-node=1 --nodelist=gpu01,gpu02 torchrun --nnodes 2 --nproc_per_node 4 train.py
