#!/bin/bash
##SBATCH --nodes=9
#SBATCH --gpus-per-node=4
cd /data/x
cd $SLURM_SUBMIT_DIR/code
MASTER_ADDR=$(hostname) LR=$RATE torchrun --nproc_per_node 4 train.py
