// SPDX-License-Identifier: Apache-2.0
// A million blocks of 4 KiB found again by the headers of their arena: the scan alone, in one mapping that
// has its pages and in a new one, as a restarted node sees them.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "arena/index.h"
#include "arena/protocol.h"
#include "arena/test_arena.h"
#include "io/files.h"
#include "memory/recovery.h"

namespace cistern::memory {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t Recover(arena::RealWords& words, const arena::ArenaSpace& arena, const char* what) {
  auto start = Clock::now();
  Slots slots(words, arena);
  Recovery recovery(words, slots);
  std::vector<RecoveredBlock> blocks(256);
  std::uint64_t found = 0;
  while (!recovery.done()) found += recovery.Next(blocks);
  std::printf("%s: %lu blocks in %.0f ms\n", what, found,
              std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  return found;
}

int Main() {
  constexpr std::uint64_t kBlocks = 1'000'000;
  arena::Geometry geometry{4096, 256};
  arena::RealWords words;
  // Sparse, because only headers are touched: a memfd of 8 GiB would take that much.
  Fd fd(::memfd_create("recovery_bench", 0));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(geometry.file_bytes())) != 0) return 1;
  auto map = [&] {
    return Mapping::Map(fd.get(), "arena", 0, geometry.file_bytes(), Access::kReadWrite).value();
  };
  Mapping first = map();
  arena::ArenaSpace arena(first.data(), geometry);
  const std::uint64_t slot_bytes = SlotSize::For(record::RecordBytes(4096, 4096), 4096).bytes;
  const std::uint64_t a_chunk = arena::kHeaderSpanBytes / slot_bytes;
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    if (i % a_chunk == 0) arena::Carve(words, arena, static_cast<std::uint32_t>(i / a_chunk), 1, slot_bytes);
    arena::Place place = geometry.place(i / a_chunk * arena::kHeaderSpanBytes + i % a_chunk * slot_bytes);
    arena::NewRecord record;
    std::uint32_t parts[] = {4096};
    record.seal = {.incarnation = 1, .key = arena::TestKey(i), .part_bytes = parts};
    record.sequence = i;
    arena::DirectoryEntry entry = arena::DirectoryOf(place, 2, 4096, record);
    arena::StoreWords(words, reinterpret_cast<std::byte*>(arena.directory(place)),
                      std::as_bytes(std::span(&entry, 1)));
    words.Store(arena.generation(place), 2);
  }
  Recover(words, arena, "the same mapping");
  Mapping second = map();
  Recover(words, arena::ArenaSpace(second.data(), geometry), "a new mapping");

  Fd index_fd(::memfd_create("index", 0));
  if (!io::Preallocate(index_fd.get(), "index", geometry.index_bytes()).ok()) return 1;
  Mapping index =
      Mapping::Map(index_fd.get(), "index", 0, geometry.index_bytes(), Access::kReadWrite).value();
  arena::IndexSpace space(index.data(), geometry.bucket_count());
  arena::IndexWriter<arena::Words> writer(words, space);
  auto start = Clock::now();
  writer.ClearRange(0, space.entry_count());
  std::printf("index of %lu MiB cleared, first touch included: %.0f ms\n", geometry.index_bytes() >> 20,
              std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  return 0;
}

}  // namespace
}  // namespace cistern::memory

int main() { return cistern::memory::Main(); }
