"""Torch's own distributed test-suite passes over our backends: `DistributedTest._DistTestBase`, with 2 and with 3 ranks.

A test that torch keeps for other backends runs as if this one was gloo or MPI. The tables name every test that does not run, and why; a
test that skips and is not in them fails, so that nothing goes missing unseen when torch changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.c10d.mpirun import need_mpi, run_job
from tests.support import SLOWEST
from tests.ucc.ranks import run_ranks

LEFT_OUT = {
    "ends a rank in the middle, or leaves the group broken": """
        test_ddp_has_finalized test_ddp_model_diff_across_ranks
    """,
    "a timeout breaks the group: test_mpi_job and tests/ucc have tests of our own": """
        test_barrier_timeout_full_group test_barrier_timeout_global test_barrier_timeout_group
    """,
    "dist.monitored_barrier refuses all but gloo; the method of the group has tests of our own": """
        test_monitored_barrier_allreduce_hang test_monitored_barrier_allreduce_hang_wait_all_ranks
        test_monitored_barrier_failure_order test_monitored_barrier_gloo test_monitored_barrier_gloo_rank_0_timeout
        test_monitored_barrier_gloo_subgroup test_monitored_barrier_wait_all_ranks
    """,
    "sparse tensors are refused": """
        test_sparse_all_reduce_sum
    """,
}
"""Tests that are not started."""

NEEDS_THREE_RANKS = """
    test_all_gather_coalesced_group test_all_gather_group test_all_reduce_coalesced_group_max
    test_all_reduce_coalesced_group_min test_all_reduce_coalesced_group_product
    test_all_reduce_coalesced_group_sum test_all_reduce_group_max test_all_reduce_group_min
    test_all_reduce_group_product test_all_reduce_group_sum test_all_to_all_group
    test_all_to_all_single_equal_split_group test_all_to_all_single_unequal_split_group test_barrier_group
    test_broadcast_group test_gather_group test_reduce_group_max test_reduce_group_min
    test_reduce_group_product test_reduce_group_sum test_scatter_group
"""
"""Their group is ranks 1 and 2; torch takes it that there are always three ranks with MPI."""

SKIPPED = {
    "needs GPUs": """
        test_1_level_hierarchical_model_averager_equivalent_to_periodic_model_averager
        test_DistributedDataParallel_SyncBatchNorm test_DistributedDataParallel_SyncBatchNorm_2D_Input
        test_DistributedDataParallel_SyncBatchNorm_Channels_Last
        test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value
        test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient
        test_DistributedDataParallel_SyncBatchNorm_No_Affine
        test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process
        test_DistributedDataParallel_SyncBatchNorm_half test_DistributedDataParallel_with_amp_and_grad_is_view
        test_DistributedSampler_padding test_all_gather_cuda test_all_gather_cuda_complex
        test_all_gather_into_cat_tensor_cuda test_all_gather_into_stack_tensor_cuda test_all_reduce_sum_cuda
        test_all_reduce_sum_cuda_async test_all_reduce_sum_cuda_complex test_all_to_all_cuda
        test_all_to_all_cuda_complex test_all_to_all_full_group_cuda test_all_to_all_group_cuda
        test_all_to_all_single_equal_split_cuda test_all_to_all_single_equal_split_cuda_complex
        test_all_to_all_single_equal_split_full_group_cuda test_all_to_all_single_equal_split_group_cuda
        test_all_to_all_single_unequal_split_cuda test_all_to_all_single_unequal_split_cuda_complex
        test_all_to_all_single_unequal_split_full_group_cuda test_all_to_all_single_unequal_split_group_cuda
        test_average_parameters test_barrier_cuda test_barrier_full_group_cuda test_barrier_group_cuda
        test_broadcast_cuda test_compute_bucket_assignment_by_size_sparse_error_without_logger
        test_ddp_apply_optim_in_backward test_ddp_apply_optim_in_backward_grad_as_bucket_view_false
        test_ddp_apply_optim_in_backward_ignored_params test_ddp_broadcast_buffer
        test_ddp_broadcast_buffer_via_hook test_ddp_broadcast_buffers_deprecation_warning
        test_ddp_bucket_cap_mb_list test_ddp_buffer_hook_allreduce
        test_ddp_buffer_hook_allreduce_return_future test_ddp_build_debug_param_to_name_mapping
        test_ddp_build_debug_param_to_name_mapping_requires_grad test_ddp_comm_hook_logging
        test_ddp_compile_static_graph test_ddp_control_flow_different_across_ranks
        test_ddp_control_flow_same_across_ranks test_ddp_device test_ddp_device_mesh_initialization
        test_ddp_forward_backward_hook test_ddp_grad_div_uneven_inputs test_ddp_hook_parity_allreduce
        test_ddp_hook_parity_allreduce_process_group test_ddp_hook_parity_post_localSGD
        test_ddp_hook_parity_powerSGD test_ddp_ignore_params_arg test_ddp_inference
        test_ddp_init_sync_buffers_with_forward_sync_buffers_false test_ddp_join_model_equivalence
        test_ddp_join_respects_forward_sync_buffers_false test_ddp_logging_data_gpu
        test_ddp_model_diff_num_params_across_ranks test_ddp_multiple_nested_unused_params_err_ignore_params
        test_ddp_multiple_nested_unused_params_error test_ddp_namedtuple
        test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none
        test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none
        test_ddp_native_mixed_precision_ignored_params
        test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none
        test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none test_ddp_new_tensor_in_fwd
        test_ddp_new_tensor_in_fwd_static_graph test_ddp_profiling_torch_profiler test_ddp_python_error_logged
        test_ddp_remove_autograd_hooks test_ddp_returns_tensor_with_no_grad
        test_ddp_shared_grad_acc_unused_params test_ddp_sink_noclone test_ddp_static_graph_nested_types
        test_ddp_sync_module_states test_ddp_uneven_input_exception test_ddp_uneven_input_join_disable
        test_ddp_uneven_inputs test_ddp_uneven_inputs_stop_iteration_sync_bn
        test_ddp_unused_params_rebuild_buckets_exception test_ddp_zero_output_features
        test_detect_ddp_is_actually_static test_different_graph_across_ranks test_gather_cuda
        test_get_data_parallel_params test_invalid_static_graph
        test_new_subgroups_by_enumeration_negative_input_rank test_new_subgroups_group_size_exceeds_world_size
        test_output_unused_in_loss_dict_module test_output_unused_in_loss_tuple_module
        test_periodic_model_averager test_periodic_model_averager_param_group
        test_post_localSGD_optimizer_parity test_post_localSGD_optimizer_parity_grad_is_view
        test_post_localSGD_optimizer_parity_with_hierarchical_sgd
        test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view
        test_post_localSGD_optimizer_step_reload test_reduce_scatter_tensor_cuda test_reduce_sum_cuda
        test_reduce_sum_cuda_twice test_scatter_cuda test_scatter_cuda_complex
        test_skip_all_reduce_unused_parameters test_sparse_all_reduce_sum_cuda test_stateless_api_with_ddp
        test_static_graph_multi_forward test_sync_bn_logged test_undefined_grad_parity_unused_parameters
        test_verify_model_across_rank_with_logger test_verify_model_across_rank_without_logger
    """,
    "needs 4 ranks": """
        test_3_level_hierarchical_model_averager test_gather_object test_gather_object_subgroup
        test_new_subgroups_by_enumeration_input_rank_exceeds_world_size test_new_subgroups_overlap_not_allowed
        test_new_subgroups_with_group_param test_new_subgroups_world_size_not_divisible_by_group_size
    """,
    "torch 2.13 has disabled it everywhere, with a link to its issue in the sources": """
        test_DistributedDataParallel test_DistributedDataParallel_non_default_stream test_barrier_timeout_arg
        test_broadcast_object_list test_compute_bucket_assignment_by_size_sparse_error_with_logger
        test_ddp_hook_pickling_powerSGD test_ddp_model_diff_shape_across_ranks
        test_ddp_profiling_autograd_profiler test_ddp_profiling_execution_trace
        test_ddp_sync_bn_training_vs_eval test_new_subgroups test_new_subgroups_by_enumeration
    """,
    "needs torchvision": """
        test_SyncBatchNorm_process_group
    """,
    "is about NCCL": """
        test_all_gather_v_cuda test_batch_isend_irecv_mixed_backend_err test_batch_isend_irecv_nccl
        test_batch_isend_irecv_no_rank_zero_nccl test_batch_isend_irecv_op_err
        test_batch_isend_irecv_op_list_err test_batch_isend_irecv_ring_exchange_nccl
        test_batch_isend_irecv_self_nccl test_coalescing_manager test_coalescing_manager_async
        test_nccl_backend_bool_allgather test_nccl_backend_bool_allreduce test_nccl_backend_bool_broadcast
        test_nccl_backend_bool_reduce test_nccl_high_priority_stream test_reduce_scatter_v_cuda
        test_send_recv_nccl test_send_recv_nccl_autograd_profiler test_send_recv_nccl_torch_profiler
    """,
}
"""Tests that skip themselves."""

LEAST = {2: 90, 3: 110}
"""How many tests pass at the least, by the number of ranks."""


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("backend", ["mpi", "ucc"])
def test_torchs_own_suite_passes(backend: str, ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("expecttest", reason="torch's tests need it: pip install expecttest")
    for name in ("barrier", "test_dir"):
        (tmp_path / name).mkdir()
    left_out = " ".join((*LEFT_OUT.values(), *([NEEDS_THREE_RANKS] if ranks == 2 else []))).split()
    script, arguments = Path(__file__).with_name("torch_suite.py"), (backend, str(tmp_path), *left_out)
    env = {"TEMP_DIR": str(tmp_path), "WORLD_SIZE": str(ranks)}
    done: Any
    if backend == "mpi":
        need_mpi()
        done = run_job(ranks, script, *arguments, seconds=140 * SLOWEST, env=env)
    else:
        done = run_ranks(ranks, script, *arguments, seconds=140, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    everybody = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for rank, verdicts in enumerate(everybody):
        failed = {name: text for name, text in verdicts.items() if text != "ok" and not text.startswith("skipped: ")}
        assert not failed, f"on rank {rank}: {json.dumps(failed, indent=1)}"
        unlisted = {name: text for name, text in verdicts.items() if text != "ok"}.keys() - set(
            " ".join(SKIPPED.values()).split()
        )
        assert not unlisted, f"on rank {rank} these skip, and no table says why: {sorted(unlisted)}"
        assert sum(text == "ok" for text in verdicts.values()) >= LEAST[ranks]
