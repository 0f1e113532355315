// SPDX-License-Identifier: Apache-2.0
// test: --bytes 4MiB --tensors 20 --pairs 1
// test: --warm --bytes 4MiB --tensors 20 --pairs 1
// test: --new-memory --bytes 4MiB --tensors 20 --pairs 1
// test: --refresh --bytes 4MiB --tensors 20 --pairs 1
// What a load costs from a cold cache: as it was saved, resharded from rows to columns, replicated, with and
// without sharing what is read, and a verification. With --warm what it costs where the page cache has the files. And
// what a load of somebody else's safetensors costs beside one of cairn's own. With --refresh what it costs to read only
// what has changed.
#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/program.hpp>
#include <support/twins.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace {

using cairn_bench::at_least;
using cairn_bench::at_most;
using cairn_bench::bench_state;
using cairn_bench::mebibyte;
using cairn_bench::read_file;

constexpr int shards = 4;

struct load_options : cairn_bench::program_options {
  bool warm = false;
  bool new_memory = false;
  bool refresh = false;
  std::string peers;
  std::string script = "benchmarks/load_peer.py";
};

/// Parallel pread of whole files' pieces with XXH3 of each MiB, a thread for each processor: what the page cache has
/// comes from there.
void read_hashed(std::span<const read_file> files) {
  struct part {
    std::size_t file;
    cairn_bench::read_piece piece;
  };
  std::vector<cairn_bench::open_file> open;
  std::vector<part> parts;
  for (const auto& file : files) {
    open.emplace_back(file.path, 0);
    for (const auto& p : file.pieces)
      for (std::uint64_t at = 0; at < p.bytes; at += mebibyte)
        parts.push_back({open.size() - 1, {p.offset + at, std::min(p.bytes - at, mebibyte), p.to + at}});
  }
  std::atomic<std::uint64_t> sum{0};
  cairn_bench::in_parallel(static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U)), parts.size(),
                           1, [&](std::uint64_t i, std::uint64_t) {
                             const auto& [file, piece] = parts[i];
                             open[file].read(piece.to, piece.bytes, piece.offset);
                             sum ^= cairn::digest(std::span<const std::byte>(piece.to, piece.bytes));
                           });
  cairn_bench::keep(sum.load());
}

/// The same files with all of their bytes going to memory one after another, 4 bytes off alignment.
std::vector<read_file> into_memory(const std::vector<std::string>& paths, std::byte* to) {
  std::vector<read_file> files;
  to += 4;
  for (const auto& path : paths) {
    const auto bytes = cairn_bench::open_file(path, 0).size();
    files.push_back({path, {{0, bytes, to}}});
    to += bytes;
  }
  return files;
}

class load_benchmark {
 public:
  explicit load_benchmark(const load_options& o)
      : options_(o),
        directory_(o.directory),
        rows_(bench_state::tensor_rows(o.bytes, o.tensors)),
        size_("/" + cairn_bench::size_text(o.bytes) + "/tensors=" + std::to_string(o.tensors)) {}

  void run() {
    if (options_.refresh) {
      measure_refresh();
      report_.write(options_.json);
      return;
    }
    measure_whole();
    if (options_.warm) {
      measure_ranks_warm();
    } else if (!options_.new_memory) {
      measure_reshard();
      measure_replicated();
    }
    report_.write(options_.json);
  }

 private:
  static cairn::checkpointer_options quiet() {
    cairn::checkpointer_options o;
    o.quiet = true;
    return o;
  }
  /// A refresh after every twentieth block has changed, against a load of everything, both from a cold cache.
  void measure_refresh() {
    bench_state memory(rows_);
    bench_state copy(rows_);
    const auto saved = memory.whole();
    const auto loaded = copy.whole();
    cairn::checkpointer c{store("refreshed"), quiet()};
    c.save(saved, 1).wait();
    std::uint64_t changed = 0;
    std::uint64_t block = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i)
      for (std::uint64_t at = 0; at < memory.size(i); at += mebibyte)
        if (block++ % 20 == 0) {
          memory.place(i)[at] ^= std::byte{1};
          changed += std::min(mebibyte, memory.size(i) - at);
        }
    c.save(saved, 2).wait();
    const auto files = directory_.files();
    const auto cold = [&](auto&& work) {
      for (const auto& path : files) cairn_bench::make_cold(path);
      return cairn_bench::seconds_of(work);
    };
    c.load(loaded, 1);
    std::uint64_t read = 0;
    const auto seconds = cairn_bench::interleaved(
        options_.pairs,
        [&] {
          (void)c.refresh(loaded, 1);
          const auto took = cold([&] { read = c.refresh(loaded).bytes_read; });
          check_equal(memory, copy);
          return took;
        },
        [&] { return cold([&] { c.load(loaded, 2); }); });
    report_.add("load_cold/refresh_5_percent_against_load" + size_,
                cairn_bench::make_pairs(seconds[0], seconds[1]), "s");
    report_.add_against("load_cold/refresh_5_percent/read" + size_,
                        cairn_bench::samples({static_cast<double>(read)}), "B", static_cast<double>(changed),
                        at_most(1.05));
  }
  [[nodiscard]] cairn::file_store store(const char* name) const {
    return cairn::file_store{directory_.path() + "/" + name};
  }
  /// The data files below a directory of the store.
  [[nodiscard]] std::vector<std::string> data_files(const std::string& name) const {
    std::vector<std::string> found;
    for (const auto& path : directory_.files())
      if (path.starts_with(directory_.path() + "/" + name + "/") && path.ends_with(".safetensors"))
        found.push_back(path);
    std::sort(found.begin(), found.end());
    return found;
  }
  /// Runs ours and both ways to read by hand in turns, each from a cold cache, and reports rates of `bytes`
  /// against the quicker way.
  template <class Load>
  void compare(const std::string& name, std::uint64_t bytes, const std::vector<read_file>& by_hand,
               double goal, Load&& load) {
    const auto all = directory_.files();
    const auto cold = [&](auto&& work) {
      for (const auto& path : all) cairn_bench::make_cold(path);
      return cairn_bench::seconds_of(work);
    };
    const auto ours = [&] { return cold(load); };
    const auto direct = [&] { return cold([&] { cairn_bench::read_direct(by_hand); }); };
    const auto buffered = [&] { return cold([&] { cairn_bench::read_buffered(by_hand); }); };
    (void)ours(), (void)direct(), (void)buffered();
    const auto seconds = cairn_bench::interleaved(options_.pairs, ours, direct, buffered);
    const bool second = cairn_bench::samples(seconds[2]).median() < cairn_bench::samples(seconds[1]).median();
    report_.add(name + size_ + (second ? "/twin=pread" : "/twin=O_DIRECT"),
                cairn_bench::make_pairs(cairn_bench::rates(bytes, seconds[0]),
                                        cairn_bench::rates(bytes, seconds[second ? 2 : 1])),
                "B/s", goal > 0 ? at_least(goal) : cairn_bench::goal{});
  }

  void measure_whole() {
    bench_state memory(rows_);
    memory.fill(1);
    const auto state = memory.whole();
    cairn::checkpointer c{store("whole"), quiet()};
    c.save(state, 1).wait();
    const auto paths = data_files("whole");
    if (paths.size() != 1) throw std::runtime_error("one rank is expected to write one file");
    bench_state copy(rows_);
    const auto loaded = copy.whole();
    // Its own reading of the layout: the file's items follow each other, in the order of the state.
    read_file by_hand{paths[0], {}};
    auto at = cairn_bench::open_file(paths[0], 0).size() - memory.bytes();
    std::vector<std::size_t> order;
    for (const bool small : {true, false})
      for (std::size_t i = 0; i < rows_.size(); ++i)
        if ((memory.size(i) < cairn::always_copied_below) == small) order.push_back(i);
    for (const auto i : order) {
      by_hand.pieces.push_back({at, copy.size(i), copy.place(i)});
      at += copy.size(i);
    }
    cairn_bench::read_buffered({&by_hand, 1});
    check_equal(memory, copy);
    copy.clear();
    c.load(loaded, 1);
    check_equal(memory, copy);

    measure_foreign(memory, copy, paths[0], [&] { c.load(loaded, 1); });
    if (options_.warm || options_.new_memory || !options_.peers.empty()) {
      compare_more(memory, copy, by_hand, [&] { c.load(loaded, 1); });
      c.close();
      return;
    }
    compare("load_cold", memory.bytes(), {by_hand}, 0.9, [&] { c.load(loaded, 1); });
    cairn::safetensors_storage storage{store("whole")};
    auto reader = storage.reader();
    compare("verify_cold", memory.bytes(), {by_hand}, 0, [&] {
      auto opened = reader.open(1, reader.fetch(1));
      (void)reader.verify(opened, cairn::deadline::never());
    });
    c.close();
  }

  /// A file as others write it, whose data begins anywhere, beside cairn's own load, and, where there is one, the copy in
  /// place by Python's safetensors.
  template <class Load>
  void measure_foreign(const bench_state& memory, bench_state& copy, const std::string& own,
                       Load&& load_own) {
    const auto path = directory_.path() + "/foreign.safetensors";
    cairn::safetensors_header header;
    header.metadata.emplace_back("format", "pt");
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      cairn::safetensors_entry e;
      e.key = bench_state::name(i), e.type = cairn::dtype::f32;
      e.shape = {rows_[i], bench_state::columns};
      e.begin = end, e.end = end += memory.size(i);
      header.entries.push_back(std::move(e));
    }
    const auto head = cairn::encode_safetensors_header(header, 8);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(head.data()), static_cast<std::streamsize>(head.size()));
    for (std::size_t i = 0; i < rows_.size(); ++i)
      file.write(reinterpret_cast<const char*>(memory.place(i)),
                 static_cast<std::streamsize>(memory.size(i)));
    if (!file.flush()) throw std::runtime_error("the file of another program could not be written");
    file.close();
    cairn::checkpointer foreign{cairn::safetensors_files(path), quiet()};
    const auto loaded = copy.whole();
    copy.clear();
    foreign.load(loaded, cairn::safetensors_files::step);
    check_equal(memory, copy);
    const auto timed = [&](const std::string& what, auto&& work) {
      if (options_.new_memory) copy.forget();
      options_.warm ? cairn_bench::make_warm(what) : cairn_bench::make_cold(what);
      return cairn_bench::seconds_of(work);
    };
    const auto theirs = [&] {
      return timed(path, [&] { foreign.load(loaded, cairn::safetensors_files::step); });
    };
    const auto ours = [&] { return timed(own, load_own); };
    const auto peer = [&] { return options_.peers.empty() ? 0.0 : peer_seconds("safetensors", path); };
    (void)theirs(), (void)ours();
    const auto seconds = cairn_bench::interleaved(options_.pairs, theirs, ours, peer);
    const auto name = std::string("load_") + (options_.warm ? "warm" : "cold") +
                      (options_.new_memory ? "/new_memory" : "") + "/foreign" + size_;
    const auto against = [&](std::size_t rival, const char* what, cairn_bench::goal goal) {
      report_.add(name + what,
                  cairn_bench::make_pairs(cairn_bench::rates(memory.bytes(), seconds[0]),
                                          cairn_bench::rates(memory.bytes(), seconds[rival])),
                  "B/s", goal);
    };
    against(1, "/of-own", at_least(0.9));
    if (!options_.peers.empty()) against(2, "/peer=safetensors", at_least(options_.warm ? 1.0 : 1.2));
    foreign.close();
    std::remove(path.c_str());
    copy.clear();
    load_own();
    check_equal(memory, copy);
  }

  /// A load from the page cache or not, into memory that was touched or not, beside copies by hand and other programs.
  template <class Load>
  void compare_more(const bench_state& saved, const bench_state& copy, const read_file& by_hand,
                    Load&& load) {
    const auto cold_or_warm = [&] {
      if (options_.warm)
        cairn_bench::make_warm(by_hand.path);
      else
        cairn_bench::make_cold(by_hand.path);
    };
    const auto timed = [&](auto&& work) {
      if (options_.new_memory) copy.forget();
      cold_or_warm();
      return cairn_bench::seconds_of(work);
    };
    const auto ours = [&] { return timed(load); };
    const auto hashed = [&] { return timed([&] { read_hashed({&by_hand, 1}); }); };
    std::vector<std::span<const std::byte>> from;
    for (std::size_t i = 0; i < saved.rows().size(); ++i) from.emplace_back(saved.place(i), saved.size(i));
    std::vector<std::uint64_t> digests;
    const auto copied = [&] {
      return timed([&] {
        cairn_bench::copy_pieces(from, copy.place(0), static_cast<int>(std::thread::hardware_concurrency()),
                                 &digests);
      });
    };
    const auto direct = [&] { return timed([&] { cairn_bench::read_direct({&by_hand, 1}); }); };
    std::map<std::string, bool> there{{"safetensors", true}, {"hf", true}, {"dcp", true}};
    const auto by = [&](const char* peer) {
      return [&, peer] {
        if (options_.peers.empty() || !there[peer]) return 0.0;
        const auto seconds = peer_seconds(peer, by_hand.path);
        there[peer] = seconds > 0;
        return seconds;
      };
    };
    // Into memory that the way before it has touched, in pages of the same size.
    const auto touched = [&] {
      if (!options_.new_memory) return 0.0;
      cold_or_warm();
      return cairn_bench::seconds_of(load);
    };
    (void)ours(), (void)hashed(), (void)copied(), (void)direct();
    const auto seconds = cairn_bench::interleaved(options_.pairs, ours, hashed, copied, direct,
                                                  by("safetensors"), by("hf"), by("dcp"), touched);
    const auto name =
        std::string("load_") + (options_.warm ? "warm" : "cold") + (options_.new_memory ? "/new_memory" : "");
    const auto against = [&](std::size_t rival, const char* what, double goal) {
      report_.add(name + size_ + what,
                  cairn_bench::make_pairs(cairn_bench::rates(saved.bytes(), seconds[0]),
                                          cairn_bench::rates(saved.bytes(), seconds[rival])),
                  "B/s", goal > 0 ? at_least(goal) : cairn_bench::goal{});
    };
    against(1, "/twin=pread+XXH3", options_.warm && !options_.new_memory ? 0.87 : 0);
    if (options_.warm) against(2, "/twin=copy+XXH3", options_.new_memory ? 0 : 0.87);
    if (!options_.warm) against(3, "/twin=O_DIRECT", options_.new_memory ? 0.87 : 0.9);
    if (options_.new_memory) {
      const auto seldom_more = options_.warm ? cairn_bench::goal{} : at_most(1.15);
      report_.add(name + size_ + "/of-touched", cairn_bench::make_pairs(seconds[0], seconds[7]), "s",
                  seldom_more);
      report_.add_against(name + size_ + "/of-touched/slowest-of-" + std::to_string(options_.pairs),
                          cairn_bench::samples({cairn_bench::samples(seconds[0]).sorted.back()}), "s",
                          cairn_bench::samples(seconds[7]).median(), seldom_more);
    }
    if (options_.peers.empty()) return;
    const double goal = options_.warm ? 1.0 : 1.2;
    against(4, "/peer=safetensors", goal);
    if (there["hf"]) against(5, "/peer=PyTorch-safetensors", goal);
    if (there["dcp"]) against(6, "/peer=PyTorch-DCP", goal);
  }
  /// Of one load by another program, into memory that is there; 0 where Python lacks it.
  [[nodiscard]] double peer_seconds(const std::string& peer, const std::string& path) const {
    const auto command = "'" + options_.peers + "/bin/python3' '" + options_.script + "' --by " + peer +
                         " --scratch '" + directory_.path() + "'" + (options_.warm ? "" : " --cold") +
                         (options_.new_memory ? " --new-memory" : "") + " '" + path + "'";
    return cairn_bench::numbers_of(command, 1).at(0);
  }
  /// Each of four ranks loads what it saved, from the page cache.
  void measure_ranks_warm() {
    std::vector<std::int64_t> part;
    for (const auto n : rows_) part.push_back(n / shards);
    std::vector<std::unique_ptr<bench_state>> saved;
    std::vector<std::unique_ptr<bench_state>> copies;
    std::uint64_t bytes = 0;
    for (int r = 0; r < shards; ++r) {
      saved.push_back(std::make_unique<bench_state>(part));
      saved.back()->fill(static_cast<std::uint64_t>(r) + 10);
      copies.push_back(std::make_unique<bench_state>(part));
      bytes += saved.back()->bytes();
    }
    on_ranks("rows", cairn::read_sharing::on, [&](int rank, auto& c) {
      c.save(saved[static_cast<std::size_t>(rank)]->row_shard(rank, shards), 1).wait();
    });
    for (const auto& path : data_files("rows")) cairn_bench::make_warm(path);
    // From when all ranks have a checkpointer until the last one has loaded, as one rank is measured above.
    const auto load = [&] {
      std::barrier ready(shards);
      std::vector<cairn::deadline::clock::time_point> begun(shards);
      std::vector<cairn::deadline::clock::time_point> ended(shards);
      on_ranks("rows", cairn::read_sharing::on, [&](int rank, auto& c) {
        const auto r = static_cast<std::size_t>(rank);
        const auto wanted = copies[r]->row_shard(rank, shards);
        ready.arrive_and_wait();
        begun[r] = cairn::deadline::clock::now();
        static_cast<void>(c.load(wanted, 1));
        ended[r] = cairn::deadline::clock::now();
      });
      return std::chrono::duration<double>(*std::max_element(ended.begin(), ended.end()) -
                                           *std::min_element(begun.begin(), begun.end()))
          .count();
    };
    static_cast<void>(load());
    for (int r = 0; r < shards; ++r)
      check_equal(*saved[static_cast<std::size_t>(r)], *copies[static_cast<std::size_t>(r)]);
    std::vector<std::span<const std::byte>> from;
    for (const auto& s : saved)
      for (std::size_t i = 0; i < s->rows().size(); ++i) from.emplace_back(s->place(i), s->size(i));
    cairn_bench::warm_memory flat(bytes);
    std::vector<std::uint64_t> digests;
    const auto copied = [&] {
      cairn_bench::copy_pieces(from, flat.data(), static_cast<int>(std::thread::hardware_concurrency()),
                               &digests);
    };
    copied();
    const auto seconds =
        cairn_bench::interleaved(options_.pairs, load, [&] { return cairn_bench::seconds_of(copied); });
    report_.add(
        "load_warm/four_ranks" + size_ + "/twin=copy+XXH3",
        cairn_bench::make_pairs(cairn_bench::rates(bytes, seconds[0]), cairn_bench::rates(bytes, seconds[1])),
        "B/s", at_least(0.87));
  }

  void measure_reshard() {
    std::vector<std::int64_t> part;
    for (const auto n : rows_) part.push_back(n / shards);
    std::vector<std::unique_ptr<bench_state>> saved;
    for (int r = 0; r < shards; ++r) {
      saved.push_back(std::make_unique<bench_state>(part));
      saved.back()->fill(static_cast<std::uint64_t>(r) + 10);
    }
    on_ranks("rows", cairn::read_sharing::on, [&](int rank, auto& c) {
      c.save(saved[static_cast<std::size_t>(rank)]->row_shard(rank, shards), 1).wait();
    });
    const auto paths = data_files("rows");
    if (paths.size() != shards) throw std::runtime_error("each rank is expected to write one file");
    std::uint64_t stored = 0;
    for (const auto& path : paths) stored += cairn_bench::open_file(path, 0).size();
    cairn_bench::warm_memory flat(stored + mebibyte);
    const auto by_hand = into_memory(paths, flat.data());

    // One rank's columns lie in every block of every file: all bytes are read, one quarter is kept.
    constexpr auto width = bench_state::columns / shards;
    std::vector<std::unique_ptr<bench_state>> columns;
    for (int r = 0; r < shards; ++r) columns.push_back(std::make_unique<bench_state>(rows_, width));
    cairn::checkpointer alone{store("rows"), quiet()};
    const auto first = columns[0]->column_shard(0, shards);
    alone.load(first, 1);
    check_columns(saved, *columns[0], 0);
    compare("load_cold/rows_to_columns/one_rank", stored, by_hand, 0.5, [&] { alone.load(first, 1); });
    // All columns, by four ranks that are threads: alone each of them reads every file, together each file
    // once.
    const auto load = [&](cairn::read_sharing sharing) {
      return load_on_ranks("rows", sharing, [&](int rank, auto& c) {
        return c.load(columns[static_cast<std::size_t>(rank)]->column_shard(rank, shards), 1);
      });
    };
    std::uint64_t bytes = 0;
    for (const auto& s : saved) bytes += s->bytes();
    compare_sharing("load_cold/rows_to_columns/four_ranks", bytes, stored, by_hand, load);
    for (int r = 0; r < shards; ++r) check_columns(saved, *columns[static_cast<std::size_t>(r)], r);
  }

  /// Every rank wants everything: alone they read the checkpoint four times, together once.
  void measure_replicated() {
    const auto paths = data_files("whole");
    std::uint64_t stored = 0;
    for (const auto& path : paths) stored += cairn_bench::open_file(path, 0).size();
    cairn_bench::warm_memory flat(stored + mebibyte);
    const auto by_hand = into_memory(paths, flat.data());
    bench_state saved(rows_);
    saved.fill(1);
    std::vector<std::unique_ptr<bench_state>> copies;
    for (int r = 0; r < shards; ++r) copies.push_back(std::make_unique<bench_state>(rows_));
    const auto load = [&](cairn::read_sharing sharing) {
      return load_on_ranks("whole", sharing, [&](int rank, auto& c) {
        return c.load(copies[static_cast<std::size_t>(rank)]->whole(), 1);
      });
    };
    for (const auto sharing : {cairn::read_sharing::off, cairn::read_sharing::on}) {
      for (auto& copy : copies) copy->clear();
      (void)load(sharing);
      for (const auto& copy : copies) check_equal(saved, *copy);
    }
    compare_sharing("load_cold/replicated/four_ranks", saved.bytes(), stored, by_hand, load);
  }

  /// `load(sharing)`: by all ranks; the bytes that they read. Each way against one reading by hand, then how
  /// much each reads of the `bytes` of the state, and the time of the shared load against that of the other.
  template <class Load>
  void compare_sharing(const std::string& name, std::uint64_t bytes, std::uint64_t stored,
                       const std::vector<read_file>& by_hand, Load&& load) {
    const auto files = directory_.files();
    const auto cold = [&](cairn::read_sharing sharing) {
      for (const auto& path : files) cairn_bench::make_cold(path);
      return cairn_bench::seconds_of([&] { (void)load(sharing); });
    };
    for (const auto sharing : {cairn::read_sharing::off, cairn::read_sharing::on}) {
      const bool shared = sharing == cairn::read_sharing::on;
      const auto way = name + (shared ? "/shared" : "/alone");
      compare(way, stored, by_hand, 0, [&] { (void)load(sharing); });
      const cairn_bench::samples read({static_cast<double>(load(sharing))});
      report_.add_against(way + "/read" + size_, read, "B", static_cast<double>(bytes),
                          shared ? at_most(1.01) : cairn_bench::goal{});
    }
    const auto seconds = cairn_bench::interleaved(
        options_.pairs, [&] { return cold(cairn::read_sharing::on); },
        [&] { return cold(cairn::read_sharing::off); });
    report_.add(name + "/shared_against_alone" + size_, cairn_bench::make_pairs(seconds[0], seconds[1]), "s");
  }

  /// Runs `load(rank, checkpointer)` on threads that are ranks; what all of them read.
  template <class Load>
  [[nodiscard]] std::uint64_t load_on_ranks(const char* directory, cairn::read_sharing sharing, Load&& load) {
    std::atomic<std::uint64_t> read{0};
    on_ranks(directory, sharing, [&](int rank, auto& c) { read += load(rank, c).bytes_read; });
    return read;
  }
  /// Runs body(rank, checkpointer) on threads that are ranks.
  template <class Body>
  void on_ranks(const char* directory, cairn::read_sharing sharing, Body&& body) {
    const cairn::thread_group group{shards};
    std::vector<std::exception_ptr> failures(shards);
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < shards; ++r)
        threads.emplace_back([&, r] {
          try {
            cairn::checkpointer c{store(directory), quiet(), sharing, group.communicator(r)};
            body(r, c);
            c.close();
          } catch (...) {
            failures[static_cast<std::size_t>(r)] = std::current_exception();
          }
        });
    }
    for (const auto& f : failures)
      if (f) std::rethrow_exception(f);
  }
  static void check_equal(const bench_state& a, const bench_state& b) {
    for (std::size_t i = 0; i < a.rows().size(); ++i)
      if (std::memcmp(a.place(i), b.place(i), a.size(i)) != 0)
        throw std::runtime_error("a load brought other bytes than were saved");
  }
  void check_columns(const std::vector<std::unique_ptr<bench_state>>& saved, const bench_state& got,
                     int part) {
    constexpr std::uint64_t row = bench_state::columns * sizeof(float);
    constexpr std::uint64_t piece = row / shards;
    for (std::size_t i = 0; i < rows_.size(); ++i)
      for (int r = 0; r < shards; ++r) {
        const auto& from = *saved[static_cast<std::size_t>(r)];
        for (std::int64_t k = 0; k < from.rows()[i]; ++k) {
          const auto global = static_cast<std::uint64_t>(r * from.rows()[i] + k);
          if (std::memcmp(from.place(i) + static_cast<std::uint64_t>(k) * row +
                              static_cast<std::uint64_t>(part) * piece,
                          got.place(i) + global * piece, piece) != 0)
            throw std::runtime_error("a resharding load brought other bytes than were saved");
        }
      }
  }

  load_options options_;
  cairn_bench::scratch directory_;
  std::vector<std::int64_t> rows_;
  std::string size_;
  cairn_bench::report report_{"load"};
};

}  // namespace

int main(int argc, char** argv) {
  load_options o;
  CLI::App app{
      "What a load costs, against reading the same bytes by hand; from a cold cache, if not otherwise said.",
      "bench_load"};
  cairn_bench::add_state_options(app, o);
  cairn_bench::add_directory_option(app, o);
  app.add_flag("--warm", o.warm, "From the page cache, by one rank and by four");
  app.add_flag("--new-memory", o.new_memory, "Into memory that was not touched before, in pages of 4 KiB");
  app.add_flag("--refresh", o.refresh, "A refresh after 5 % of the blocks have changed, against a load");
  app.add_option("--peers", o.peers,
                 "A virtual environment of Python with safetensors and PyTorch, which are measured, too");
  app.add_option("--script", o.script, "What runs them: benchmarks/load_peer.py");
  return cairn_bench::run_program(app, argc, argv, [&] { load_benchmark(o).run(); });
}
