#!/bin/bash
# Several receivers under Slurm: sbatch configs/slurm.sh [CONFIG]; a receiver and its generator for each task.
#SBATCH --job-name=streamdsb
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=04:00:00
#SBATCH --output=streamdsb-%j.log

set -euo pipefail

# Activate the environment that streamdsb is installed in, the same path on all nodes, and the cluster's MPI:
#   module load openmpi
#   source "$HOME/streamdsb/venv/bin/activate"

# On GPUs (receiver.backend: cuda, stream.transport: peer), ask for as many as there are tasks on a node:
#   #SBATCH --gpus-per-node=4

config=${1:-configs/quickstart.yaml}

# --mpi has to name what the cluster's MPI speaks; `srun --mpi=list` tells what there is.
# --kill-on-bad-exit: a task that ends with an error takes the others along.
srun --mpi="${SLURM_MPI_TYPE:-pmix}" --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-2}" \
    streamdsb run "$config" --out "runs/slurm-$SLURM_JOB_ID"
