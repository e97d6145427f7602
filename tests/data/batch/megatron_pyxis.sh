#!/bin/bash
#SBATCH -p batch -A coreai -t 04:00:00
#SBATCH --nodes=8 --exclusive --mem=0 --ntasks-per-node=8
#SBATCH --dependency=singleton
DIR=$(pwd)
DATETIME=`date +'date_%y-%m-%d_time_%H-%M-%S'`
IMAGE=/lustre/images/pytorch.sqsh
options="--tensor-model-parallel-size 8 \
   --lr 1e-4 --data-path ${BLEND} \
   --save $SCRATCH/ckpt"
run_cmd="python -u /lustre/megatron/pretrain_gpt.py ${options}"
srun -l --container-image $IMAGE --container-mounts "/lustre:/lustre,/home" --output=$DIR/logs/%x_%j_$DATETIME.log sh -c "${run_cmd}"
set +x
