#!/bin/bash
#SBATCH -N 1
run() { torchrun --nproc-per-node 4 train.py --seed $1; }
run 1
