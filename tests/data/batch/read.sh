#!/bin/bash
#SBATCH -N 1
LR=1
read -r LR < lr.txt
torchrun --nproc-per-node=2 train.py --lr $LR
