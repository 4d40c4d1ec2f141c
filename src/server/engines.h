// SPDX-License-Identifier: Apache-2.0
// Engines by the names that their sessions say, and what an operator has switched off for one of them. A name
// is a label: nothing is shared by it, and sessions that have the same are one engine here. What is off stays
// so for sessions that come later under the name, until it is turned back or the node ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/task.h"
#include "cistern/status.h"
#include "store/switches.h"

namespace cistern::server {

struct Session;

struct Engine {
  std::string name;
  std::size_t number = 0;                      // below Engines::numbers(), while it is known
  std::array<bool, 2> off{};                   // by store::Switch
  std::map<std::uint64_t, Session*> sessions;  // by number; not ended

  bool on(store::Switch which) const { return !off[static_cast<std::size_t>(which)]; }
  bool anything_off() const { return off[0] || off[1]; }
};

class Engines final {
 public:
  // Engines that have something off, at most: they are kept though they have no session.
  static constexpr std::size_t kMaxOff = 256;

  explicit Engines(Executor& executor) : executor_(executor) {}
  Engines(const Engines&) = delete;
  Engines& operator=(const Engines&) = delete;

  Executor& executor() { return executor_; }

  // The session is one of the engine of this name from now on, until Leave; what was off for it then is off
  // for calls of it that are still under way. kInvalid: no such name, or it has one.
  Status Introduce(Session& session, std::string_view name);
  void Leave(Session& session);

  // Turns reads or writes on or off for one engine. No call of its sessions that begins after it hits, or
  // keeps anything. How many sessions it has; kMiss: there is no such engine; kBusy: there is no room for one
  // more that has something off.
  Task<Result<std::uint32_t>> Turn(store::Switch which, bool on, std::string name);
  // On again for each that was off.
  Task<void> TurnAllOn(store::Switch which);

  // Null where none has the number; another one has it when an engine is gone.
  const Engine* at(std::size_t number) const { return numbers_[number]; }
  std::size_t numbers() const { return numbers_.size(); }
  std::uint64_t off_count(store::Switch which) const;

 private:
  using ByName = std::map<std::string, std::shared_ptr<Engine>, std::less<>>;

  // Shows each of the engine's sessions whether its reads are on, and forgets an engine that is nothing.
  Task<void> Show(std::string name);
  void ForgetIfNothing(ByName::iterator engine);

  Executor& executor_;
  ByName engines_;
  std::vector<const Engine*> numbers_;
};

}  // namespace cistern::server
