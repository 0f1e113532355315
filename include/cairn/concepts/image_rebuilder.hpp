// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/model/surveyed_save.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Bytes of which an image that is lost is made again.
struct rebuild_range {
  /// Where they are.
  enum class kind : std::uint8_t {
    image,   ///< in the image of the rank
    piece,   ///< in the piece that the rank keeps
    record,  ///< they are all that there is to know of that piece
  };
  std::int32_t rank = 0;    ///< that saved; it may be elsewhere now, or no more
  kind what = kind::image;  ///< where the bytes lie
  std::uint64_t begin = 0;  ///< the first of them
  std::uint64_t bytes = 0;  ///< how many; of a record, which is as long as it is: 0
};

/// What one place of a tier gives to those that rebuild images of a save. One thread at a time.
class rebuild_sources {
 public:
  virtual ~rebuild_sources() = default;
  /// How many bytes read() gives: those of the range, or of the whole record; 0 where they cannot be had.
  /// @throws storage_error where they may be there, and a limit of this process keeps them from it
  [[nodiscard]] virtual std::uint64_t bytes(const rebuild_range& from) = 0;
  /// Fills `out`, which has bytes(from), with them, not verified; false where they cannot be had. Throws as bytes().
  [[nodiscard]] virtual bool read(const rebuild_range& from, std::span<std::byte> out) = 0;
  /// `head`, and behind it the bytes, which are not copied: they stay what they are as long as the message is held. Null
  /// where that is not possible: read() them then. Throws as bytes().
  [[nodiscard]] virtual lent_message lend(const rebuild_range& from, std::span<const std::byte> head) = 0;
};

/// Makes one image again, in a place of a tier: asks for what it needs, in windows, of which several may be on their way,
/// verifies each block of what it makes, writes it once, and holds the image when all of it is there. Where it ends before
/// that, nothing is left of it. One thread at a time.
class image_rebuild {
 public:
  virtual ~image_rebuild() = default;
  /// What is needed next, about so many bytes of it at most, but one step at least; nothing: what was asked for must be
  /// taken first, or the image is whole. @throws peer_error (peer_lost) naming the ranks whose loss is too much
  [[nodiscard]] virtual std::vector<rebuild_range> next(std::uint64_t bytes) = 0;
  /// Where the bytes of the window that next() gave last belong, if they are one range of which the image is to have a copy: who
  /// puts them there gives them to take() from there. Null where they belong nowhere as they are.
  [[nodiscard]] virtual std::shared_ptr<std::byte[]> place() = 0;
  /// Goes on with the window that next() gave first of those that were not taken yet, in the order of its ranges; empty:
  /// what cannot be had. @throws as next(); corrupt_error; storage_error where it cannot be written
  virtual void take(std::span<const std::span<const std::byte>> parts) = 0;
  /// All of it was made and verified.
  [[nodiscard]] virtual bool is_whole() const = 0;
  /// Holds the image; @pre is_whole(). Returns a sentence for each source that was wrong or gone. @throws storage_error
  virtual std::vector<std::string> finish() = 0;
};

/// Makes images that are lost with a place of a tier again from what others keep. `all` is what all places have of a save
/// together. One thread calls it.
class image_rebuilder {
 public:
  virtual ~image_rebuilder() = default;
  /// Adds to `saves` the pieces that a place has. `damaged` gets a sentence for each record of a piece that cannot be
  /// read. @throws storage_error
  virtual void survey(const std::string& directory, std::vector<surveyed_save>& saves,
                      std::vector<std::string>& damaged) = 0;
  /// Removes the pieces that a place has of a save of a run that has ended. @throws storage_error
  virtual void remove_pieces(const std::string& directory, const surveyed_save& which) = 0;
  /// Why the image of this rank cannot be rebuilt, in a sentence; empty: it can, as far as records tell.
  [[nodiscard]] virtual std::string obstacle(const surveyed_save& all, std::int32_t lost) = 0;
  /// Where the pieces of this rank's image were made by another redundancy than the job has now: a sentence, with the one
  /// that it had; empty: they were not, or none is left.
  [[nodiscard]] virtual std::string other_redundancy(const surveyed_save& all, std::int32_t lost) = 0;
  /// What this place gives to others.
  [[nodiscard]] virtual std::unique_ptr<rebuild_sources> sources(const std::string& directory,
                                                                 const surveyed_save& all) = 0;
  /// Begins to rebuild the image of a rank in this place. @throws peer_error (peer_lost), storage_error
  [[nodiscard]] virtual std::unique_ptr<image_rebuild> begin(const std::string& directory,
                                                             const surveyed_save& all, std::int32_t lost) = 0;
};

}  // namespace v1
}  // namespace cairn
