#!/bin/bash
#SBATCH -p hpc --nodes=4 --gpus-per-node=8 --ntasks-per-node=1
#SBATCH --cpus-per-task=96
#SBATCH --switches=1
#SBATCH --comment=training
#SBATCH --job-name=gpt-345m
#SBATCH --time=UNLIMITED
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_HCA=mlx5
GPUS_PER_NODE=8
NODES=($(scontrol show hostnames $SLURM_JOB_NODELIST))
MASTER_ADDR=${NODES[0]}
NUM_NODES=$SLURM_NNODES
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1
VOCAB_FILE=/data/gpt2-vocab.json
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --rdzv_id $RANDOM
    --rdzv_endpoint $MASTER_ADDR:6000
)
GPT_ARGS=(
    --num-layers 24
    --global-batch-size $((WORLD_SIZE * 4))
    --save ${CHECKPOINT_PATH}
    --lr-decay-style cosine # the default
)
srun --container-image=nvcr.io#nvidia/pytorch:24.05-py3 \
     --container-mounts=/data:/data,/home/me/x:/workspace \
     --container-workdir=/workspace --no-container-mount-home --mpi=pmix \
     torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py "${GPT_ARGS[@]}" --vocab-file $VOCAB_FILE
