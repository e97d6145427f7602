#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4
VISIBLE='$SLURM_LOCALID'
srun bash -c "export RANK=\$SLURM_PROCID LOCAL_RANK=\$SLURM_LOCALID
python -u train.py --rank \$SLURM_PROCID --world \$SLURM_NTASKS --node \$SLURM_NODEID --first $SLURM_PROCID"
