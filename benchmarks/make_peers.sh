#!/bin/sh
# Makes the environments of versus_peers.py, defaults.py, results.py and conformance.py: sh benchmarks/make_peers.sh FOLDER
# FOLDER/sb3 has Stable-Baselines3 and sb3-contrib, FOLDER/sbx has SBX, FOLDER/jax plain JAX, FOLDER/rliable what
# check_statistics.py runs in, FOLDER/tianshou, FOLDER/skrl and FOLDER/rsl what conformance.py checks. Each is separate,
# because their requirements pull in different directions. Versions that the tests ran with hold (constraints.txt).
set -eu
folder=${1:?"where to put them: sh benchmarks/make_peers.sh FOLDER"}
here=$(cd "$(dirname "$0")/.." && pwd)
make() {
    name=$1
    shift
    test -x "$folder/$name/bin/python" || python3 -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install -q -c "$here/constraints.txt" "$@"
}
make sb3 torch==2.13.0 stable-baselines3 sb3-contrib "gymnasium[classic-control,box2d,mujoco]"
make sbx torch==2.13.0 sbx-rl stable-baselines3 "gymnasium[classic-control,box2d,mujoco]"
make jax jax
make rliable rliable "pandas<3"
make skrl torch==2.13.0 gymnasium==1.4.0 skrl
make rsl torch==2.13.0 gymnasium==1.4.0 rsl-rl-lib
test -x "$folder/tianshou/bin/python" || python3 -m venv "$folder/tianshou"
"$folder/tianshou/bin/python" -m pip install -q torch==2.13.0 "tianshou>=2" # our constraints would choose an old version
