#!/bin/bash -l
#SBATCH --job-name=llm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --hint=nomultithread
#SBATCH --partition=small-g
#SBATCH --account=project_465000000
#SBATCH --time=0-02:00
module purge
module load LUMI/24.03 partition/G
SIF=/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.sif
export SINGULARITYENV_PREPEND_PATH=/user-software/bin
export NCCL_NET_GDR_LEVEL=3
export MIOPEN_USER_DB_PATH=/tmp/${USER}-miopen-${SLURM_JOB_ID}
export MASTER_ADDR=$(scontrol show hostname "$SLURM_NODELIST" | head -n1)
export MASTER_PORT=29500
export WORLD_SIZE=$SLURM_NPROCS
export HF_HOME=/scratch/$SLURM_JOB_ACCOUNT/hf
srun singularity exec -B /scratch -B /pfs $SIF bash -c '
  $WITH_CONDA
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
  export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID
  python -u finetune.py --model my/model --output-dir $HF_HOME/out --num-gpus $SLURM_NTASKS
'
