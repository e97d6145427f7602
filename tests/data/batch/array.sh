#!/bin/bash
#SBATCH -N 1
#SBATCH --array=0-9%2
python train.py --seed $SLURM_ARRAY_TASK_ID
