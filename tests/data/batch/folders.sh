#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
BASE=$SCRATCH/runs
PROJ=~/proj
export HF_HOME=$BASE/hf TMPDIR=~/tmp
export PATH=/opt/a:$PATH
export PATH=/opt/b:$PATH
source $PROJ/env/bin/activate
ROOT=$SLURM_SUBMIT_DIR
cd /data/x
cd run
if [ -d /fast ]; then
  cd /fast
fi
for name in cuda nccl; do
  module load $name
done
srun python train.py --data $ROOT/data --out ~/out
