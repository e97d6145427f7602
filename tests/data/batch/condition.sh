#!/bin/bash
#SBATCH -N 1 --gres=gpu:2
if [ -n "$DEBUG" ]; then LR=1; else LR=2; fi
torchrun --standalone --nproc_per_node 2 train.py --lr $LR
