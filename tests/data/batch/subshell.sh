#!/bin/bash
#SBATCH -N 1 --gres=gpu:2
{ echo begin; cd src; }
(cd prepare && python make.py)
torchrun --nproc-per-node=2 run.py
