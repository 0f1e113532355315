// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::contracts
#pragma once
/// The bodies of cairn, for exactly one file of a program whose files are all compiled with -DCAIRN_COMPILED (the CMake
/// target cairn::contracts sets it), so that the others parse contracts alone. Link cairn::compiled instead, and
/// there is no such file. With CAIRN_COMPILED_S3, _ZSTD, _INTERPROCESS or _MPI this file has the bodies of these, too.
#include <cairn/system/compiler.hpp>

#if !defined(CAIRN_COMPILED)
#error \
    "<cairn/implementation.hpp> belongs to a program whose files are all compiled with -DCAIRN_COMPILED: link the CMake target cairn::contracts, which sets it, or leave this line out"
#include <cairn/system/needs_cairn_compiled>  // ends the compilation, which #error does not
#endif
#if !defined(CAIRN_IMPLEMENTATION)
#define CAIRN_IMPLEMENTATION
#endif
#undef CAIRN_BODY
#define CAIRN_BODY

// bodies: begin (`bash tests/check_tree.sh --fix` writes them)
#include <cairn/impl/checkpointer.ipp>
#include <cairn/impl/checkpointer/engine.ipp>
#include <cairn/impl/checkpointer/engine_parts.ipp>
#include <cairn/impl/comm/collectives.ipp>
#include <cairn/impl/comm/single_process.ipp>
#include <cairn/impl/comm/thread_communicator.ipp>
#include <cairn/impl/concepts/any_communicator.ipp>
#include <cairn/impl/concepts/any_executor.ipp>
#include <cairn/impl/concepts/any_planner.ipp>
#include <cairn/impl/concepts/any_reader.ipp>
#include <cairn/impl/concepts/any_stager.ipp>
#include <cairn/impl/concepts/any_storage.ipp>
#include <cairn/impl/concepts/any_store.ipp>
#include <cairn/impl/concepts/any_writer.ipp>
#include <cairn/impl/concepts/copy_engine.ipp>
#include <cairn/impl/concepts/read_exchange.ipp>
#include <cairn/impl/concepts/store_errors.ipp>
#include <cairn/impl/execute/run_save_job.ipp>
#include <cairn/impl/execute/save_thread.ipp>
#include <cairn/impl/execute/thread_executor.ipp>
#include <cairn/impl/manage/resume_together.ipp>
#include <cairn/impl/manage/stop_signal.ipp>
#include <cairn/impl/model/cast.ipp>
#include <cairn/impl/model/chunk_progression.ipp>
#include <cairn/impl/model/chunk_set.ipp>
#include <cairn/impl/model/extents.ipp>
#include <cairn/impl/model/files_under_way.ipp>
#include <cairn/impl/model/image_control.ipp>
#include <cairn/impl/model/item.ipp>
#include <cairn/impl/model/metadata.ipp>
#include <cairn/impl/model/placement.ipp>
#include <cairn/impl/model/plan.ipp>
#include <cairn/impl/model/rank_set.ipp>
#include <cairn/impl/model/record.ipp>
#include <cairn/impl/model/save_context.ipp>
#include <cairn/impl/model/save_handle.ipp>
#include <cairn/impl/model/save_journal.ipp>
#include <cairn/impl/model/save_progress.ipp>
#include <cairn/impl/model/source_table.ipp>
#include <cairn/impl/model/staged_image.ipp>
#include <cairn/impl/model/state_dict.ipp>
#include <cairn/impl/model/state_entry.ipp>
#include <cairn/impl/model/stored_items.ipp>
#include <cairn/impl/observe/progress_bar.ipp>
#include <cairn/impl/observe/save_interval.ipp>
#include <cairn/impl/observe/trace_file.ipp>
#include <cairn/impl/plan/assign/balance.ipp>
#include <cairn/impl/plan/default_planner.ipp>
#include <cairn/impl/plan/gathered.ipp>
#include <cairn/impl/plan/glob.ipp>
#include <cairn/impl/plan/load/load_plan_cache.ipp>
#include <cairn/impl/plan/load/load_planning.ipp>
#include <cairn/impl/plan/load/read_requests.ipp>
#include <cairn/impl/plan/near_names.ipp>
#include <cairn/impl/plan/plan_cache.ipp>
#include <cairn/impl/plan/source_cache.ipp>
#include <cairn/impl/plan/summary/summary.ipp>
#include <cairn/impl/plan/summary/summary_codec.ipp>
#include <cairn/impl/plan/summary/summary_merge.ipp>
#include <cairn/impl/plan/summary/validation.ipp>
#include <cairn/impl/stage/copy_job.ipp>
#include <cairn/impl/stage/copy_threads.ipp>
#include <cairn/impl/stage/heap_memory.ipp>
#include <cairn/impl/stage/heap_stager.ipp>
#include <cairn/impl/stage/host_copy.ipp>
#include <cairn/impl/stage/image_sources.ipp>
#include <cairn/impl/stage/memory_budget.ipp>
#include <cairn/impl/stage/memory_limits.ipp>
#include <cairn/impl/stage/no_staging.ipp>
#include <cairn/impl/stage/prefer_node.ipp>
#include <cairn/impl/storage/commit/attempt_ending.ipp>
#include <cairn/impl/storage/commit/attempts_under_way.ipp>
#include <cairn/impl/storage/commit/checkpoint_catalog.ipp>
#include <cairn/impl/storage/commit/commit_options.ipp>
#include <cairn/impl/storage/commit/commit_parts.ipp>
#include <cairn/impl/storage/commit/commit_protocol.ipp>
#include <cairn/impl/storage/commit/leases.ipp>
#include <cairn/impl/storage/commit/record_collection.ipp>
#include <cairn/impl/storage/commit/restart_notes.ipp>
#include <cairn/impl/storage/commit/shared_mark.ipp>
#include <cairn/impl/storage/commit/step_objects.ipp>
#include <cairn/impl/storage/load/load_engine.ipp>
#include <cairn/impl/storage/load/planned_want.ipp>
#include <cairn/impl/storage/load/reads_in_flight.ipp>
#include <cairn/impl/storage/load/shared_reads.ipp>
#include <cairn/impl/storage/load/stored_checkpoint.ipp>
#include <cairn/impl/storage/load/stored_record.ipp>
#include <cairn/impl/storage/manifest/corrupt.ipp>
#include <cairn/impl/storage/manifest/manifest_check.ipp>
#include <cairn/impl/storage/manifest/manifest_format.ipp>
#include <cairn/impl/storage/manifest/manifest_reader.ipp>
#include <cairn/impl/storage/manifest/names.ipp>
#include <cairn/impl/storage/manifest/record_format.ipp>
#include <cairn/impl/storage/safetensors/safetensors_header.ipp>
#include <cairn/impl/storage/safetensors/safetensors_layout.ipp>
#include <cairn/impl/storage/safetensors/safetensors_parser.ipp>
#include <cairn/impl/storage/safetensors/shared_file_plan.ipp>
#include <cairn/impl/storage/safetensors_reader.ipp>
#include <cairn/impl/storage/safetensors_writer.ipp>
#include <cairn/impl/storage/write_source.ipp>
#include <cairn/impl/stores/file/file_io.ipp>
#include <cairn/impl/stores/file/file_system_kinds.ipp>
#include <cairn/impl/stores/file/io_error.ipp>
#include <cairn/impl/stores/file/options.ipp>
#include <cairn/impl/stores/file/posix_file_system.ipp>
#include <cairn/impl/stores/file_store.ipp>
#include <cairn/impl/stores/memory_store.ipp>
#include <cairn/impl/stores/object_buffer.ipp>
#include <cairn/impl/system/background_thread.ipp>
#include <cairn/impl/system/backoff.ipp>
#include <cairn/impl/system/clocks.ipp>
#include <cairn/impl/system/compiler.ipp>
#include <cairn/impl/system/deadline.ipp>
#include <cairn/impl/system/digest.ipp>
#include <cairn/impl/system/error.ipp>
#include <cairn/impl/system/fork_guard.ipp>
#include <cairn/impl/system/parallel.ipp>
#include <cairn/impl/system/populate.ipp>
#include <cairn/impl/system/process_limits.ipp>
#include <cairn/impl/system/rate_limiter.ipp>
#include <cairn/impl/system/shared.ipp>
#include <cairn/impl/system/shared_calls.ipp>
#include <cairn/impl/system/shared_event.ipp>
#include <cairn/impl/system/thread_pool.ipp>
#include <cairn/impl/system/thread_settings.ipp>
#include <cairn/impl/system/wire.ipp>
#include <cairn/impl/tiers/held_record.ipp>
#include <cairn/impl/tiers/held_store.ipp>
#include <cairn/impl/tiers/tier_files.ipp>
#if defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/answer.ipp>
#include <cairn/impl/stores/s3/bucket.ipp>
#include <cairn/impl/stores/s3/bucket_terms.ipp>
#include <cairn/impl/stores/s3/call.ipp>
#include <cairn/impl/stores/s3/client.ipp>
#include <cairn/impl/stores/s3/clock.ipp>
#include <cairn/impl/stores/s3/crc64nvme.ipp>
#include <cairn/impl/stores/s3/credentials.ipp>
#include <cairn/impl/stores/s3/fetched_credentials.ipp>
#include <cairn/impl/stores/s3/hashes.ipp>
#include <cairn/impl/stores/s3/heartbeat.ipp>
#include <cairn/impl/stores/s3/http_attempt.ipp>
#include <cairn/impl/stores/s3/http_call.ipp>
#include <cairn/impl/stores/s3/http_transport.ipp>
#include <cairn/impl/stores/s3/object_writer.ipp>
#include <cairn/impl/stores/s3/one_request.ipp>
#include <cairn/impl/stores/s3/options.ipp>
#include <cairn/impl/stores/s3/pace.ipp>
#include <cairn/impl/stores/s3/range_reader.ipp>
#include <cairn/impl/stores/s3/service.ipp>
#include <cairn/impl/stores/s3/sigv4.ipp>
#include <cairn/impl/stores/s3/xml.ipp>
#include <cairn/impl/stores/s3_store.ipp>
#include <cairn/impl/stores/s3_url.ipp>
#endif
#if defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/comm/shared_memory_communicator.ipp>
#include <cairn/impl/execute/job_message.ipp>
#include <cairn/impl/execute/main_program.ipp>
#include <cairn/impl/execute/peer_process.ipp>
#include <cairn/impl/execute/process_executor.ipp>
#include <cairn/impl/execute/worker_link.ipp>
#include <cairn/impl/execute/worker_main.ipp>
#include <cairn/impl/execute/worker_process.ipp>
#include <cairn/impl/execute/worker_session.ipp>
#include <cairn/impl/execute/worker_settings.ipp>
#include <cairn/impl/tiers/local_tier.ipp>
#include <cairn/impl/tiers/tier_slots.ipp>
#include <cairn/impl/tiers/tier_stager.ipp>
#endif
#if defined(CAIRN_COMPILED_MPI)
#include <cairn/impl/comm/mpi_communicator.ipp>
#endif
// bodies: end

// What is header-only in this program stays inline in this file, too.
#undef CAIRN_BODY
#define CAIRN_BODY inline
