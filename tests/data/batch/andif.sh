#!/bin/bash
#SBATCH -N 1
LR=1
[ -n "$BIG" ] && LR=2
torchrun --nproc_per_node 4 t.py --lr $LR
