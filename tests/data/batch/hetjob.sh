#!/bin/bash
#SBATCH -N 1
#SBATCH hetjob
#SBATCH -N 2
srun python t.py
