// SPDX-License-Identifier: Apache-2.0
#pragma once
// cairn for translation units in C (C99 and newer), C++17 and nvcc: five kinds of call serve a whole trainer.
//
//   1. open      cairn_open(directory)
//   2. register  cairn_tensor, cairn_flat_range, cairn_box, cairn_value, cairn_bytes: one call for each item
//   3. resume    cairn_resume(ckpt, &step)
//   4. save      cairn_save(ckpt, step)
//   5. close     cairn_close(&ckpt)
//
// A sixth, cairn_before_update(ckpt), is needed only if the checkpointer was made with cairn::overlapped.
//
// The bodies are in <cairn/interop/c_interface.hpp>, which one .cpp file of the program includes; that file
// defines cairn_open, and so says where checkpoints go and how they are made. See
// docs/integrate-a-c-trainer.md.
//
// Errors. No exception leaves these functions. Each returns 0, or the number of an error; the number divided
// by 100 tells who can act: 1 usage, 2 plan, 3 storage, 4 corrupt, 5 timeout, 6 peer (docs/errors.md).
// cairn_error_message() has the sentence. Why opening failed is told again by every call on the null that it
// gave, on the thread that opened and until it opens again; a registration that failed is told again by
// cairn_resume and cairn_save, and so is a cairn_rebind, until one with this name succeeds. So a trainer that
// checks these two and cairn_close misses nothing.
//
// Order. Register everything before cairn_resume, resume before the first save; another order is refused with
// 113 (usage_wrong_order). Every call on a null checkpointer is refused with 107 (usage_closed).
//
// Ranks. cairn_resume and cairn_save are called by all ranks in the same order (cairn_open, too, as it is
// where ranks find each other). One thread at a time uses a checkpointer; cairn_before_update may be called
// by any.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A checkpointer with the items that were registered for it. Lives from cairn_open to cairn_close.
typedef struct cairn_checkpointer cairn_checkpointer;

/// Element types, with the numbers of cairn::dtype. f6 and f4 are packed.
typedef enum cairn_dtype {
  cairn_boolean = 0,
  cairn_u8 = 1,
  cairn_i8 = 2,
  cairn_i16 = 3,
  cairn_u16 = 4,
  cairn_i32 = 5,
  cairn_u32 = 6,
  cairn_i64 = 7,
  cairn_u64 = 8,
  cairn_f16 = 9,
  cairn_bf16 = 10,
  cairn_f32 = 11,
  cairn_f64 = 12,
  cairn_c64 = 13,
  cairn_f8_e5m2 = 14,
  cairn_f8_e4m3 = 15,
  cairn_f8_e8m0 = 16,
  cairn_f6_e2m3 = 17,
  cairn_f6_e3m2 = 18,
  cairn_f4 = 19,
  cairn_dtype_limit = 0x7fffffff  ///< no type: makes the enumeration 32 bits wide in every language
} cairn_dtype;

/// How an item wants to be treated: any of these, joined by `|`; 0 for most.
typedef enum cairn_flag {
  cairn_copy_now = 1,  ///< a large tensor that forward or backward changes: copied before cairn_save returns
  cairn_per_rank = 2,  ///< one for each rank: rank r reads back item r
  cairn_optional = 4,  ///< may be missing from a checkpoint: then it keeps its value
  cairn_frozen = 8     ///< never changes, a promise: stored once, and linked by the saves after that
} cairn_flag;

/// Opens the checkpoints in a directory, which all ranks see. Defined by the program, in the .cpp file that
/// includes <cairn/interop/c_interface.hpp>, by cairn::open_for_c. A program that needs more arguments (a
/// rank, a communicator) declares and defines an opening function of its own instead. Null: it failed, see
/// cairn_error_message().
cairn_checkpointer* cairn_open(const char* directory);

/// Registers a whole tensor, row-major, of `dimensions` (at most 8) sizes in `shape`. The same name and shape
/// on several ranks means replicated: stored once. `memory` must stay valid until cairn_close, see
/// cairn_rebind; `name` and `shape` only during the call.
int cairn_tensor(cairn_checkpointer* ckpt, const char* name, void* memory, cairn_dtype type, int dimensions,
                 const int64_t* shape, unsigned flags);

/// Registers the elements [begin, begin + length) of the flattened tensor, as optimizers that cut buffers
/// over ranks hold them (ZeRO, FSDP). `memory` is the address of element `begin`; `shape` that of the whole
/// tensor. A length of 0 is fine.
int cairn_flat_range(cairn_checkpointer* ckpt, const char* name, void* memory, cairn_dtype type,
                     int dimensions, const int64_t* shape, int64_t begin, int64_t length, unsigned flags);

/// Registers a box of a tensor: `sizes` elements from `offset`, each an array of `dimensions` numbers.
/// `memory` is that of the box alone; `shape` that of the whole tensor.
int cairn_box(cairn_checkpointer* ckpt, const char* name, void* memory, cairn_dtype type, int dimensions,
              const int64_t* shape, const int64_t* offset, const int64_t* sizes, unsigned flags);

/// Registers one number (boolean, 8 to 64 bits of integer, f32, f64), restored in place: a learning rate, a
/// counter, a random generator's state of 64 bits. It is copied before cairn_save returns.
int cairn_value(cairn_checkpointer* ckpt, const char* name, void* memory, cairn_dtype type, unsigned flags);

/// Registers opaque bytes of the caller: a struct without pointers, a generator's state. They are copied
/// before cairn_save returns. A checkpoint that holds another number of bytes does not load.
int cairn_bytes(cairn_checkpointer* ckpt, const char* name, void* memory, size_t size, unsigned flags);

/// The new address of an item, for memory that moves. Sizes and types stay as they were registered. The old
/// memory must stay until an overlapped save has copied it: call cairn_before_update before it is freed. Where it
/// fails, nothing is saved until it succeeds for this name: the old memory is not what the item holds.
int cairn_rebind(cairn_checkpointer* ckpt, const char* name, void* memory);

/// Restores all items from the newest checkpoint that loads, on any number of ranks, and writes the count of
/// its completed updates to `*step`; leaves `*step` alone if there is no checkpoint. After an error the
/// contents of the items are unspecified. Never begins anew because of damage: 308 then, and a reason for
/// each.
int cairn_resume(cairn_checkpointer* ckpt, int64_t* step);

/// Saves all items as the checkpoint of `step`, the count of completed updates. Returns when memory may
/// change, and with cairn::overlapped at once, see cairn_before_update. An error is one of this call;
/// training may go on. What fails later, in the background, is told on stderr, and by cairn_close if it was
/// the last save.
int cairn_save(cairn_checkpointer* ckpt, int64_t step);

/// Only with cairn::overlapped: call it in each step directly before memory changes. Returns when the last
/// save has copied; costs nanoseconds where there is nothing to wait for. Harmless without overlapped.
int cairn_before_update(cairn_checkpointer* ckpt);

/// Waits for the last save, frees the checkpointer and sets `*ckpt` to null, so that a second close is
/// refused and harmless. The error is that of the last save, or of waiting for it; the checkpointer is freed
/// all the same. A process that ends without this call may lose the save that is under way.
int cairn_close(cairn_checkpointer** ckpt);

/// The sentence of the last call that failed on this thread, such as "[cairn.storage.no_space] ...". Empty
/// if none failed. Valid until the next failure on this thread; never null.
const char* cairn_error_message(void);

#ifdef __cplusplus
}
#endif
