#!/bin/bash
#SBATCH -N 1
for seed in 1 2 3; do
  srun python train.py --seed $seed
done
