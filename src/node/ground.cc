// SPDX-License-Identifier: Apache-2.0
#include "node/ground.h"

#include <string_view>
#include <utility>

#include "flash/flash_tier.h"
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
  memory::ArenaOptions arena;
  arena.memory_dir = options.memory_dir;
  arena.tenant = options.tenant;
  arena.memory_bytes = options.memory_bytes;
  arena.room_bytes = memory::kRoomShare * options.memory_bytes;
  arena.first_bytes = memory::kFirstBytes;
  arena.alignment = options.alignment;
  arena.huge_page_program = options.huge_page_program;
  arena.nodes = memory::ArenaNodes(memory::AllowedNodes(memory::ReadMemoryNodes()));
  Result<memory::ArenaFile> file = memory::ArenaFile::Open(arena, clock);
  if (!file) return file.error();
  ground.file.emplace(std::move(*file));
  for (const std::string& note : ground.file->notes()) log.Log(LogLevel::kWarning, note);
  return Status();
}

}  // namespace

io::LoopOptions LoopOptionsOf(const NodeOptions& options) {
  io::LoopOptions loop{.kind = KindOf(options.loop), .poll_us = options.poll_us};
  // Beside the devices' the journal has what a node without flash has.
  loop.max_io += static_cast<std::uint32_t>(options.flash.size()) * flash::MaxDeviceIo({});
  return loop;
}

Status OpenGround(const NodeOptions& options, const Clock& clock, Logger& log, Ground& ground) {
  Result<std::vector<net::CellKey>> keys = ReadCellKeys(options);
  if (!keys) return keys.error();
  ground.cell_keys = std::move(*keys);
  Result<FlashPlaces> places = FindFlashPlaces(options);
  if (!places) return places.error();
  ground.places = std::move(*places);
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
    Result<Fd> claim = ClaimDevice(options.flash[i], ground.places.devices[i]);
    if (!claim) return claim.error();
    ground.claims.push_back(std::move(*claim));
  }

  Result<std::unique_ptr<io::Loop>> made = io::MakeLoop(clock, LoopOptionsOf(options));
  if (!made) return made.error();
  ground.loop = std::move(*made);
  if (Status status = ground.loop->HoldLock(ground.file->lock_fd()); !status.ok()) return status;
  return ground.journal_lock.fd() < 0 ? Status() : ground.loop->HoldLock(ground.journal_lock.fd());
}

}  // namespace cistern::node
