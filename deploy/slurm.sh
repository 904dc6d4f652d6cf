#!/usr/bin/env bash
# A run over the machines of one Slurm job: sbatch deploy/slurm.sh config.yaml [SETTING=VALUE...]
# The project's folder, its environment and its models lie where every machine sees them.
#SBATCH --job-name=agentrl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --requeue
set -euo pipefail

readonly head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
readonly port=$((20000 + SLURM_JOB_ID % 20000)) # another for each job of a machine
# A cluster without a token runs anybody's code: this one is asked by all of Ray's processes of the job.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(32))')

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    ray start --head --block --port="$port" --include-dashboard=false &
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" --overlap \
        ray start --block --address="$head:$port" &
fi

# The run waits for the machines that are still starting. A job that was requeued goes on where its run stopped.
readonly run=${RUN_DIR:-runs/slurm-$SLURM_JOB_ID}
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    agentrl train "$@" run.dir="$run" placement.ray_address="$head:$port" placement.wait_s=300 \
    $([ -f "$run/run.json" ] && echo --resume)
# Slurm ends Ray's processes with the job.
