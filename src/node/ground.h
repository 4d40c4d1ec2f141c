// SPDX-License-Identifier: Apache-2.0
// What a node stands on: its places on this host, locked against others, its arena, and its loop. Opening it
// blocks, so the thread that starts the node does it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "cistern/status.h"
#include "io/loop.h"
#include "memory/arena_file.h"
#include "memory/directory_lock.h"
#include "net/tls.h"
#include "node/flash_places.h"
#include "node/options.h"

namespace cistern::node {

struct Ground {
  std::vector<net::CellKey> cell_keys;
  FlashPlaces places;
  std::vector<Fd> claims;              // on devices, none on those that are files or out of service
  memory::DirectoryLock journal_lock;  // where the journal has a directory of its own
  std::optional<memory::ArenaFile> file;
  std::unique_ptr<io::Loop> loop;
};

// What is wrong with keys and places is said before memory is reserved. After an error `ground.file` is there
// where the arena was opened: the caller gives it back.
Status OpenGround(const NodeOptions& options, const Clock& clock, Logger& log, Ground& ground);

// Of the arena, but for the memory nodes that it is divided among.
memory::ArenaOptions ArenaOptionsOf(const NodeOptions& options);
// kInvalid, with the way out: memory and its index are more than the whole file system of memory_dir.
Status CheckFileSystem(const NodeOptions& options);

io::LoopOptions LoopOptionsOf(const NodeOptions& options);

}  // namespace cistern::node
