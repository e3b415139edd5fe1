"""The position of a process among the nodes.

The environments come from real SLURM 22.05.8, Open MPI 4.1.4 and 5.0.11 and torchrun 2.13 on hosts in network
namespaces, reduced to relevant variables. The variables of pods are as Kubeflow's training operator sets them.
"""

import re
from typing import Any

import pytest

from ddp_doctor.starters.detect import outer_world
from ddp_doctor.starters.place import Allocation, Asked, NotNeeded, Place, allocation, endpoint_alone, place
from tests.words import pairs

#: srun -N2 --ntasks-per-node=2, second task of the second node.
STEP = pairs("""
    SLURMD_NODENAME=fan2 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=fan[1-2] SLURM_LOCALID=1 SLURM_NNODES=2
    SLURM_NODEID=1 SLURM_NTASKS=4 SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=fan[1-2]
    SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=2(x2)
""")
#: The batch script of sbatch -N3 --ntasks-per-node=2.
BATCH = pairs("""
    SLURMD_NODENAME=fan1 SLURM_JOB_ID=2 SLURM_JOB_NODELIST=fan[1-3] SLURM_LOCALID=0 SLURM_NNODES=3
    SLURM_NODEID=0 SLURM_NTASKS=6 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=2(x3)
""")
#: The shell of salloc -N2 on a login node.
SALLOC = {"SLURM_JOB_ID": "4", "SLURM_JOB_NODELIST": "fan[1-2]", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}
#: The same with LaunchParameters=use_interactive_step: the shell runs on the first node.
INTERACTIVE = pairs("""
    SLURMD_NODENAME=fan1 SLURM_JOB_ID=5 SLURM_JOB_NODELIST=fan[1-2] SLURM_LOCALID=0 SLURM_NODEID=0
    SLURM_PROCID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NODELIST=fan1 SLURM_STEP_NUM_NODES=1
    SLURM_STEP_TASKS_PER_NODE=1
""")
#: mpirun on fan1, --host fan1,fan2 -n 2 --map-by node: the rank on fan1, then that on fan2.
MPI_FIRST = pairs("""
    OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2
    OMPI_MCA_orte_hnp_uri=1386414080.0;tcp://10.88.0.1:36129
    OMPI_MCA_orte_local_daemon_uri=1386414080.0;tcp://10.88.0.1:36129 OMPI_MCA_orte_num_nodes=2
    PMIX_HOSTNAME=fan1 PMIX_NAMESPACE=1386414081
""")
MPI_SECOND = MPI_FIRST | pairs("""
    OMPI_COMM_WORLD_RANK=1 OMPI_MCA_ess_base_num_procs=2
    OMPI_MCA_orte_local_daemon_uri=1386414080.1;tcp://10.88.0.2:38169 OMPI_MCA_orte_node_regex=fan[1:1-2]@0(2)
    PMIX_HOSTNAME=fan2
""")
#: mpirun on fan3, which gets no rank; three ranks by slot: two on fan1, one on fan2 (this one).
MPI_FROM_LOGIN = pairs("""
    OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3
    OMPI_MCA_ess_base_num_procs=3 OMPI_MCA_orte_hnp_uri=1506410496.0;tcp://10.88.0.3:52771
    OMPI_MCA_orte_local_daemon_uri=1506410496.2;tcp://10.88.0.2:47071 OMPI_MCA_orte_node_regex=fan[1:3,1-2]@0(3)
    OMPI_MCA_orte_num_nodes=2 PMIX_HOSTNAME=fan2 PMIX_NAMESPACE=1506410497
""")
#: Open MPI 5, mpirun on fan1, the rank on fan2.
MPI_5 = pairs("""
    OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2
    PMIX_HOSTNAME=fan2 PMIX_NAMESPACE=prterun-fan1-11492@1
    PMIX_SERVER_URI2=prterun-fan1-11492@0.1;tcp4://127.0.0.1:38341 PRTE_LAUNCHED=1
""")
#: torchrun --nnodes 2 --nproc-per-node 2 with the c10d rendezvous.
TORCHRUN = pairs("""
    GROUP_RANK=1 GROUP_WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=41765 RANK=2
    TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=none WORLD_SIZE=4
""")
POD = pairs("""
    KUBERNETES_SERVICE_HOST=10.96.0.1 MASTER_ADDR=train-master-0 MASTER_PORT=23456 RANK=2 WORLD_SIZE=3
""")


def place_in(env: dict[str, str], **asked: Any) -> Place:
    return place(Asked(**asked), env, outer_world(env, 1))


def port(one: Place) -> int:
    assert one.endpoint is not None
    return one.endpoint[1]


# --- plain hosts ------------------------------------------------------------------------------------


def test_default_is_one_node():
    assert place_in({}).nnodes == 1


@pytest.mark.parametrize(
    "env", [{"RANK": "3", "WORLD_SIZE": "8"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}]
)
def test_leftover_rank_variable_is_not_a_world(env):
    assert place_in(env).nnodes == 1
    assert place_in({**env, "MASTER_PORT": "1234"}).nnodes == 1


def test_head_without_options_is_this_host():
    here = place_in({}, nnodes="2")

    assert here == Place(2, None, None, None, (), "plain", is_started_by_us=False)
    assert here.is_head


@pytest.mark.parametrize(
    ("asked", "endpoint"),
    [
        ({"rdzv_endpoint": "node0"}, ("node0", 29400)),
        ({"rdzv_endpoint": "node0:1234"}, ("node0", 1234)),
        ({"master_addr": "node0"}, ("node0", 29500)),
        ({"master_addr": "node0", "master_port": 1234}, ("node0", 1234)),
        ({"rdzv_endpoint": "node0", "master_addr": "node1", "master_port": 1}, ("node0", 29400)),
    ],
)
def test_endpoint_matches_torchrun(asked, endpoint):
    here = place_in({}, nnodes="2", **asked)

    assert here.endpoint == endpoint
    assert here.node_rank is None
    assert here.is_head is None


def test_node_rank_determines_the_head():
    assert place_in({}, nnodes="2:4", node_rank=0, rdzv_endpoint="a").is_head
    assert place_in({}, nnodes="2:4", node_rank=3, rdzv_endpoint="a").is_head is False


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"nnodes": "0"}, "invalid --nnodes '0': expected 1 to 65536, or MIN:MAX"),
        ({"nnodes": "4:2"}, "invalid --nnodes"),
        (
            {"nnodes": "2", "node_rank": 2, "rdzv_endpoint": "a"},
            "--node-rank 2 is out of range: 2 nodes have node ranks 0 to 1",
        ),
        ({"nnodes": "2", "node_rank": -1, "rdzv_endpoint": "a"}, "--node-rank -1 is out of range"),
        ({"node_rank": 1}, "--node-rank 1 is out of range: 1 node has only node rank 0"),
        ({"nnodes": "2", "node_rank": 1}, "--node-rank requires --rdzv-endpoint"),
        ({"nnodes": "2", "master_port": 1234}, "--master-port requires --master-addr"),
        ({"nnodes": "2", "master_addr": "a", "master_port": 70000}, "a port from 1 to 65535"),
        ({"nnodes": "2", "rdzv_endpoint": "a:0"}, "a port from 1 to 65535"),
        ({"nnodes": "2", "rdzv_endpoint": "a:b"}, "invalid --rdzv-endpoint"),
    ],
)
def test_impossible_place_is_one_sentence_with_advice(asked, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        place_in({}, **asked)


def test_an_agent_that_was_started_over_ssh_knows_the_hosts():
    env = {**BATCH, "DDP_DOCTOR_HOSTS": "a,b"}  # typed with --hosts in a batch script
    here = place_in(env, nnodes="2", node_rank=1, rdzv_endpoint="a:29400")

    assert here == Place(2, 1, None, ("a", 29400), ("a", "b"), "ssh", is_started_by_us=True)
    assert allocation(env, None) is None


# --- SLURM ------------------------------------------------------------------------------------------


def test_a_task_of_a_step_knows_its_node_the_head_and_a_port():
    here = place_in(STEP)

    assert (here.nnodes, here.node_rank, here.expected_hosts) == (2, 1, ("fan1", "fan2"))
    assert here.endpoint is not None
    assert here.endpoint[0] == "fan1"
    assert 10_000 <= port(here) < 29_000
    assert port(place_in({**STEP, "SLURM_NODEID": "0"})) == port(here)
    assert here.is_started_by_us
    assert not here.is_head


def test_steps_and_jobs_have_different_ports():
    ports = {port(place_in({**STEP, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step})) for job in "123" for step in "012"}

    assert len(ports) == 9


def test_a_subset_of_a_step_lets_the_other_nodes_leave():
    first = {**STEP, "SLURM_NODEID": "0"}

    assert place_in({**first, "SLURM_STEP_NUM_NODES": "3"}, nnodes="2").nnodes == 2
    assert place_in(first, nnodes="1").nnodes == 1
    with pytest.raises(NotNeeded, match="node rank 1 is not needed: --nnodes uses only the first node"):
        place_in(STEP, nnodes="1")


def test_more_nodes_than_the_step_has_are_refused():
    with pytest.raises(ValueError, match="--nnodes asks for 3 nodes, but srun started 2 nodes; start 3 nodes"):
        place_in(STEP, nnodes="3")


def test_range_of_nodes_uses_the_size_of_the_step():
    assert place_in(STEP, nnodes="1:8").nnodes == 2


def test_typed_endpoint_is_used_in_a_step():
    assert place_in(STEP, rdzv_endpoint="fan1-ib:1234").endpoint == ("fan1-ib", 1234)


def test_the_ranks_of_a_node_are_its_own_tasks():
    uneven = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "4(x2),2,1", "SLURM_LOCALID": "0"}

    def local_size(node: int) -> int:
        world = outer_world({**uneven, "SLURM_NODEID": str(node)}, 1)
        assert world is not None
        return world.local_size

    assert [local_size(node) for node in range(5)] == [4, 4, 2, 1, 1]


def test_a_batch_script_is_an_allocation_and_no_world():
    assert outer_world(BATCH, 1) is None
    assert allocation(BATCH, None) == Allocation("2", ("fan1", "fan2", "fan3"), is_inside=True)


def test_the_shell_of_salloc_on_a_login_node_is_outside_of_its_allocation():
    assert outer_world(SALLOC, 1) is None
    assert allocation(SALLOC, None) == Allocation("4", ("fan1", "fan2"), is_inside=False)


def test_an_interactive_step_is_an_allocation_and_no_world():
    assert outer_world(INTERACTIVE, 1) is None
    assert allocation(INTERACTIVE, None) == Allocation("5", ("fan1", "fan2"), is_inside=True)


@pytest.mark.parametrize("env", [STEP, {**BATCH, **TORCHRUN}, {**BATCH, **MPI_FIRST}])
def test_process_started_by_a_launcher_is_not_started_again(env):
    assert allocation(env, outer_world(env, 1)) is None


# --- Open MPI ---------------------------------------------------------------------------------------


def test_mpirun_on_the_first_host_makes_it_the_head():
    first, second = place_in(MPI_FIRST), place_in(MPI_SECOND)

    assert (first.nnodes, first.order, first.is_head) == (2, 0, True)
    assert (second.nnodes, second.order, second.is_head) == (2, 1, False)
    assert first.endpoint == second.endpoint
    assert first.endpoint is not None
    assert first.endpoint[0] == "10.88.0.1"


def test_mpirun_on_a_login_node_makes_the_first_host_with_ranks_the_head():
    here = place_in(MPI_FROM_LOGIN)
    first = {
        **MPI_FROM_LOGIN,
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_MCA_orte_local_daemon_uri": "1506410496.1;tcp://10.88.0.1:35239",
    }

    assert here.nnodes == 2
    assert here.endpoint == place_in(first).endpoint == ("fan1", port(here))


def test_host_of_mpirun_with_several_addresses_is_known_by_its_name():
    uri = {"OMPI_MCA_orte_hnp_uri": "1386414080.0;tcp://10.88.0.1,172.17.0.1:36129"}

    assert place_in({**MPI_FIRST, **uri}).endpoint == place_in({**MPI_SECOND, **uri}).endpoint
    assert place_in({**MPI_SECOND, **uri}).endpoint == ("fan1", port(place_in(MPI_FIRST)))


def test_open_mpi_5_names_the_host_of_mpirun():
    here = place_in(MPI_5)

    assert (here.nnodes, here.order, here.endpoint) == (2, 1, ("fan1", port(here)))


@pytest.mark.parametrize("env", [MPI_FIRST, MPI_5])
def test_master_addr_is_used_if_mpirun_exports_it(env):
    assert place_in({**env, "MASTER_ADDR": "fan1-ib"}).endpoint == ("fan1-ib", 29500)
    assert place_in({**env, "MASTER_ADDR": "fan1-ib", "MASTER_PORT": "1234"}).endpoint == ("fan1-ib", 1234)


@pytest.mark.parametrize(
    "env",
    [
        {**MPI_SECOND, "OMPI_COMM_WORLD_RANK": "0"},
        {**MPI_5, "OMPI_COMM_WORLD_RANK": "0"},
        {**MPI_5, "PMIX_NAMESPACE": "7"},
        {**MPI_FIRST, "OMPI_MCA_orte_hnp_uri": "?", "PMIX_HOSTNAME": ""} | {"OMPI_MCA_orte_local_daemon_uri": "x.3;"},
    ],
)
def test_user_is_asked_to_name_rank_0_if_it_is_unknown(env):
    with pytest.raises(ValueError, match=r"mpirun -x MASTER_ADDR=HOST"):
        place_in(env)


def test_unreadable_host_list_of_mpirun_is_reported_with_its_variable():
    with pytest.raises(
        ValueError, match=r"OMPI_MCA_orte_node_regex: 'fan\[1-2\]' is not an Open MPI host list; name the"
    ):
        place_in({**MPI_FROM_LOGIN, "OMPI_MCA_orte_node_regex": "fan[1-2]"})


def test_a_subset_of_mpiruns_nodes_is_refused():
    with pytest.raises(
        ValueError, match="--nnodes asks for 1 node, but mpirun started 2; start 1 node with mpirun, or omit --nnodes"
    ):
        place_in(MPI_FIRST, nnodes="1")


def test_ranks_of_daemons_that_slurm_started_are_mpiruns():
    assert place_in({**STEP, **MPI_SECOND}).launcher == "mpi"


def test_one_host_under_mpirun_is_one_node():
    assert place_in({**MPI_FIRST, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_orte_num_nodes": "1"}).nnodes == 1


# --- torchrun ---------------------------------------------------------------------------------------


def test_nodes_under_torchrun_are_its_groups_with_another_port():
    here = place_in(TORCHRUN)

    assert here == Place(2, 1, None, ("node0", port(here)), (), "torchrun", is_started_by_us=False)
    assert 10_000 <= port(here) <= 29_000
    assert port(here) == port(place_in({**TORCHRUN, "GROUP_RANK": "0", "LOCAL_RANK": "1", "RANK": "1"}))


def test_the_computed_port_is_never_torchruns_own():
    ports = [(str(one), port(place_in({**TORCHRUN, "MASTER_PORT": str(one)}))) for one in range(10_000, 29_000)]

    assert [taken for taken, chosen in ports if int(taken) == chosen] == []


def test_values_that_torchrun_read_from_pet_variables_are_its_own():
    env = {**TORCHRUN, "PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "train-worker-0:23456", "PET_NODE_RANK": "1"}

    assert place_in(env, nnodes="1:4", rdzv_endpoint="train-worker-0:23456", node_rank=1) == place_in(TORCHRUN)
    assert place_in(env, rdzv_endpoint="node0:1234").endpoint == ("node0", 1234)


# --- Kubernetes -------------------------------------------------------------------------------------


def test_a_pod_of_the_older_training_operator_is_a_node():
    hosts = ("train-master-0", "train-worker-0", "train-worker-1")

    assert place_in(POD) == Place(3, 2, None, ("train-master-0", 23456), hosts, "kubernetes", is_started_by_us=False)


@pytest.mark.parametrize("change", [{"LOCAL_RANK": "0"}, {"RANK": "x"}, {"MASTER_PORT": ""}])
def test_pod_without_variables_of_an_operator_is_one_node(change):
    assert place_in({**POD, **change}).nnodes == 1


def test_elastic_job_uses_the_maximum_number_of_nodes_without_ranks():
    here = place_in({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, nnodes="1:3", rdzv_endpoint="train-worker-0:23456")

    assert (here.nnodes, here.node_rank, here.launcher) == (3, None, "kubernetes")
    assert here.expected_hosts == ("train-worker-0", "train-worker-1", "train-worker-2")


def test_the_pods_of_a_job_set_are_known_by_number():
    asked = {"nnodes": "2", "node_rank": 1, "master_addr": "llm-node-0-0.llm", "master_port": 29400}
    here = place_in({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, **asked)

    assert here.expected_hosts == ("llm-node-0-0.llm", "llm-node-0-1.llm")


def test_pod_name_without_a_number_gives_no_node_rank():
    here = place_in({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, nnodes="2", rdzv_endpoint="trainer")

    assert here.expected_hosts == ()


MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
UNDER_TORCHRUN = MASTER | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("asked", "env", "expected"),
    [
        ({"rdzv_endpoint": "node0:29500"}, {}, ("node0", 29500)),
        ({"rdzv_endpoint": "localhost:0"}, MASTER, ("localhost", 0)),
        ({"master_addr": "node0", "master_port": 4000}, MASTER, ("node0", 4000)),
        ({"master_addr": "node0"}, {}, ("node0", 29500)),
        ({"master_port": 4000}, {}, ("127.0.0.1", 4000)),
        ({}, MASTER, ("node0", 29500)),
        ({}, MASTER | {"MASTER_PORT": "70000"}, None),
        ({}, {"MASTER_PORT": "29500"}, None),
        ({}, UNDER_TORCHRUN, None),  # its own store
        ({"rdzv_endpoint": "node0:29500"}, UNDER_TORCHRUN, None),
        ({"rdzv_endpoint": "node0:4000"}, UNDER_TORCHRUN, ("node0", 4000)),
        ({"master_addr": "node0"}, UNDER_TORCHRUN, None),
        ({}, {}, None),
    ],
)
def test_endpoint_of_a_job_on_one_node_is_found(asked: dict[str, Any], env: dict[str, str], expected: object):
    world = outer_world(env, 1)
    given = Asked(**asked).typed(env) if world else Asked(**asked)

    assert endpoint_alone(given, env, world) == expected
