#!/bin/bash -e
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --tasks-per-node=8
#SBATCH --exclude=nid001,nid002
#SBATCH --account=project_1
#SBATCH --partition=standard-g
#SBATCH --mem 480G
CONTAINER=/appl/pytorch.sif
cat > $SCRATCH/select_gpu << EOF
#!/bin/bash
export ROCR_VISIBLE_DEVICES=\$SLURM_LOCALID
exec \$*
EOF
c=fe
MYMASKS="0x${c}000000000000,0x${c}00000000000000"
srun --cpu-bind=mask_cpu:$MYMASKS singularity exec -B /scratch:/scratch,/projappl $CONTAINER python -u train.py --gpus $((SLURM_NNODES*8))
