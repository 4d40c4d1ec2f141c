// SPDX-License-Identifier: Apache-2.0
// An arena whose slots other members' devices may read: registered with the fabric as long as they have
// memory. What is not registered, because its turn has not come or the host does not let so much memory be
// locked, is sent over the rails' connections.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <thread>

#include "arena/geometry.h"
#include "base/log.h"
#include "memory/arena_backing.h"
#include "net/libfabric.h"

namespace cistern::mesh {

class RegisteredArena final : public memory::ArenaBacking {
 public:
  struct Parts {  // borrowed
    memory::ArenaBacking& backing;
    arena::ArenaSpace arena;
    net::Libfabric& fabric;
    Logger& log;
  };
  // Registers the first `headers`, which have memory, on a thread of its own: locking takes a while, longer
  // where memory has not been touched. Throws std::system_error where the system starts no more threads.
  RegisteredArena(const Parts& parts, std::uint32_t headers);
  ~RegisteredArena() override;
  RegisteredArena(const RegisteredArena&) = delete;
  RegisteredArena& operator=(const RegisteredArena&) = delete;

  // A header that was not given back since is registered still.
  Status Reserve(std::uint32_t header) override;
  // The device lets go of the range before the host gets it.
  void Release(const memory::HeaderRange& range) override;

  // Waits until all that had memory at the start is registered, or could not be.
  void AwaitStart();

 private:
  static constexpr std::uint32_t kHeaders = 32;  // registered at a time

  std::span<const std::byte> SlotsOf(const memory::HeaderRange& range) const;
  void RegisterStart();
  // What the device does not take is read over TCP for good.
  void Tell(const Status& refused) const;

  const Parts parts_;
  std::mutex mutex_;
  std::uint32_t start_end_;  // of what the thread registers
  std::uint32_t end_;        // of what is registered, will be by it, or could not be; of who reserves alone
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cistern::mesh
