#!/bin/bash
#SBATCH -N 1 --time 1-0
cd /proj/code || exit 1
source venv/bin/activate
srun -n 4 python t.py
