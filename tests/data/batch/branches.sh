#!/bin/bash
#SBATCH -N 1
LR=0
export MODE=a
if [ -n "$DEBUG" ]; then
  export MODE=b
  module load debug
else
  module load release
fi
[ -z "$Q" ] || echo q
if [ "$BIG" = 1 ]; then LR=1; fi
torchrun --nproc-per-node 2 train.py --lr $LR
