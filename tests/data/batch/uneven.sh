#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks=10
srun python train.py
