// SPDX-License-Identifier: Apache-2.0
#include "node/ground.h"

#include <time.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "arena/geometry.h"
#include "base/format.h"
#include "base/units.h"
#include "flash/flash_tier.h"
#include "memory/host_memory.h"
#include "memory/memory_nodes.h"
#include "node/cell_options.h"

namespace cistern::node {
namespace {

io::LoopKind KindOf(std::string_view name) {
  if (name == "io_uring") return io::LoopKind::kUring;
  if (name == "epoll") return io::LoopKind::kEpoll;
  return io::LoopKind::kProbe;
}

Status OpenArena(const NodeOptions& options, const Clock& clock, Logger& log, Ground& ground) {
  if (Status fits = CheckFileSystem(options); !fits.ok()) return fits;
  memory::ArenaOptions arena = ArenaOptionsOf(options);
  arena.nodes = memory::ArenaNodes(memory::AllowedNodes(memory::ReadMemoryNodes()));
  Result<memory::ArenaFile> file = memory::ArenaFile::Open(arena, clock);
  if (!file) return file.error();
  ground.file.emplace(std::move(*file));
  for (const std::string& note : ground.file->notes()) log.Log(LogLevel::kWarning, note);
  return Status();
}

// A drive may come later than the node when the host has just started, and what it holds is lost to a start
// without it.
Result<FlashPlaces> AwaitFlashPlaces(const NodeOptions& options, const Clock& clock, Logger& log) {
  constexpr timespec kLookAgain = {0, 100'000'000};
  const Instant until = clock.Now().PlusUs(kLockWaitUs);
  for (bool said = false;; said = true) {
    Result<FlashPlaces> places = FindFlashPlaces(options);
    if (!places || clock.Now() >= until) return places;
    const auto absent =
        std::ranges::find_if(places->devices, [](const auto& one) { return !one.absent.ok(); });
    if (absent == places->devices.end()) return places;
    if (!said) {
      log.Log(LogLevel::kWarning, absent->absent.message(), "; it is waited for, ", kLockWaitUs / 1'000'000,
              " s at most");
    }
    ::nanosleep(&kLookAgain, nullptr);
  }
}

}  // namespace

io::LoopOptions LoopOptionsOf(const NodeOptions& options) {
  io::LoopOptions loop{.kind = KindOf(options.loop), .poll_us = options.poll_us};
  // Beside the devices' the journal has what a node without flash has.
  loop.max_io += static_cast<std::uint32_t>(options.flash.size()) * flash::MaxDeviceIo({});
  return loop;
}

memory::ArenaOptions ArenaOptionsOf(const NodeOptions& options) {
  return {.memory_dir = options.memory_dir,
          .tenant = options.tenant,
          .memory_bytes = options.memory_bytes,
          .room_bytes = memory::kRoomShare * options.memory_bytes,
          .first_bytes = memory::kFirstBytes,
          .alignment = options.alignment,
          .huge_page_program = options.huge_page_program};
}

Status CheckFileSystem(const NodeOptions& options) {
  const std::uint64_t file_system = memory::FileSystemBytes(options.memory_dir);
  const arena::Geometry geometry = arena::Geometry::Within(options.memory_bytes, options.alignment);
  const std::uint64_t files = std::max(options.memory_bytes, geometry.file_bytes() + geometry.index_bytes());
  if (file_system == 0 || files <= file_system) return Status();
  return Status(
      Code::kInvalid,
      Text("memory: ", SizeText(options.memory_bytes), " and its index take ", RoughSizeText(files),
           ", which is above what the file system of ", options.memory_dir, " has (",
           RoughSizeText(file_system),
           "); ask for less, make it larger (in Docker with --shm-size), or name another memory_dir"));
}

Status OpenGround(const NodeOptions& options, const Clock& clock, Logger& log, Ground& ground) {
  Result<std::vector<net::CellKey>> keys = ReadCellKeys(options);
  if (!keys) return keys.error();
  ground.cell_keys = std::move(*keys);
  Result<FlashPlaces> places = AwaitFlashPlaces(options, clock, log);
  if (!places) return places.error();
  ground.places = std::move(*places);
  for (const Lost& lost : LostAtReboot(options, ground.places))
    log.Log(LogLevel::kWarning, lost.what, "; ", lost.way_out);
  if (Status status = CheckFlashQuotas(options, ground.places); !status.ok()) return status;
  if (Status status = OpenArena(options, clock, log, ground); !status.ok()) return status;
  if (!ground.places.journal_directory.empty()) {
    Result<memory::DirectoryLock> lock =
        memory::LockDirectory(ground.places.journal_directory, kLockWaitUs, clock);
    if (!lock) return lock.error();
    ground.journal_lock = std::move(*lock);
  }
  // After the locks: an earlier node of the same is gone by now.
  for (std::size_t i = 0; i < ground.places.devices.size(); ++i) {
    flash::FlashDeviceOptions& device = ground.places.devices[i];
    Result<Fd> claim = Fd();
    if (device.absent.ok()) claim = ClaimDevice(options.flash[i], device);
    if (!claim && (claim.error().code() != Code::kIoError || !ground.places.had_flash)) return claim.error();
    if (!claim) device.absent = claim.error();  // as a drive that gives errors
    ground.claims.push_back(claim ? std::move(*claim) : Fd());
  }

  Result<std::unique_ptr<io::Loop>> made = io::MakeLoop(clock, LoopOptionsOf(options));
  if (!made) return made.error();
  ground.loop = std::move(*made);
  if (Status status = ground.loop->HoldLock(ground.file->lock_fd()); !status.ok()) return status;
  return ground.journal_lock.fd() < 0 ? Status() : ground.loop->HoldLock(ground.journal_lock.fd());
}

}  // namespace cistern::node
