#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
export OMP=1 TASKS=$SLURM_NTASKS
unset OMP
srun -n 4 python train.py
