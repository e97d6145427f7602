#!/bin/bash
#SBATCH -N 1
ENV=$PROJECT/envs
source $ENV/bin/activate
srun -n 2 python t.py
