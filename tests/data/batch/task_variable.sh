#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4
srun bash -c 'export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID; python train.py'
