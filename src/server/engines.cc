// SPDX-License-Identifier: Apache-2.0
#include "server/engines.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/nearest.h"
#include "server/session.h"
#include "wire/engine_name.h"

namespace cistern::server {
namespace {

// Each is a line of memory that its client reads.
constexpr std::size_t kShownPerStep = 128;
constexpr std::size_t kMostListed = 8;

}  // namespace

Status Engines::Introduce(Session& session, std::string_view name) {
  if (Status status = wire::CheckEngineName(name); !status.ok()) return status;
  if (session.ended) return Status(Code::kGone, "the session has ended");
  if (session.engine != nullptr)
    return Status(Code::kInvalid,
                  Text("engine ", name, ": this session is ", session.engine->name, "'s already"));
  std::shared_ptr<Engine>& known = engines_[std::string(name)];
  const bool is_new = known == nullptr;
  if (is_new) known = std::make_shared<Engine>();
  Engine& engine = *known;
  if (is_new) {
    const auto free = std::ranges::find(numbers_, nullptr);
    engine.name = name;
    engine.number = static_cast<std::size_t>(free - numbers_.begin());
    if (free == numbers_.end()) numbers_.push_back(nullptr);
    numbers_[engine.number] = &engine;
  }
  engine.sessions.emplace(session.caller.session, &session);
  session.engine = known;
  session.ring.SetEngineReads(engine.on(store::Switch::kReads));
  return Status();
}

void Engines::Leave(Session& session) {
  if (session.engine == nullptr) return;
  const auto engine = engines_.find(session.engine->name);
  if (engine == engines_.end() || engine->second->sessions.erase(session.caller.session) == 0) return;
  ForgetIfNothing(engine);
}

void Engines::ForgetIfNothing(ByName::iterator engine) {
  if (!engine->second->sessions.empty() || engine->second->anything_off()) return;
  numbers_[engine->second->number] = nullptr;
  engines_.erase(engine);
}

std::uint64_t Engines::off_count(store::Switch which) const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(engines_, [&](const auto& one) { return !one.second->on(which); }));
}

Task<Result<std::uint32_t>> Engines::Turn(store::Switch which, bool on, std::string name) {
  const auto found = engines_.find(name);
  if (found == engines_.end()) {
    std::vector<std::string> known;
    for (auto one = engines_.begin(); one != engines_.end() && known.size() < kMostListed; ++one)
      known.push_back(one->first);
    co_return Error(Code::kMiss,
                    Text("engine ", Shown(name), ": no session has this name",
                         known.empty() ? std::string(", nor any other one")
                                       : "; there are " + Joined(known, ", ", [](const auto& one) {
                                           return one;
                                         }) + (engines_.size() > known.size() ? " and more" : "")));
  }
  const auto off =
      std::ranges::count_if(engines_, [](const auto& one) { return one.second->anything_off(); });
  if (!on && !found->second->anything_off() && static_cast<std::size_t>(off) >= kMaxOff) {
    co_return Error(Code::kBusy, Text("engine ", name, ": something is off for ", off,
                                      " engines, which is the limit; turn on what is not meant any more"));
  }
  found->second->off[static_cast<std::size_t>(which)] = !on;
  const auto sessions = static_cast<std::uint32_t>(found->second->sessions.size());
  co_await Show(std::move(name));
  co_return sessions;
}

Task<void> Engines::TurnAllOn(store::Switch which) {
  std::vector<std::string> off;
  for (const auto& [name, engine] : engines_)
    if (!engine->on(which)) off.push_back(name);
  for (std::string& name : off) {
    if (const auto found = engines_.find(name); found != engines_.end())
      found->second->off[static_cast<std::size_t>(which)] = false;
    co_await Show(std::move(name));
    co_await Yield();
  }
}

// Who comes meanwhile is shown what holds by then.
Task<void> Engines::Show(std::string name) {
  std::uint64_t from = 0;
  for (;;) {
    const auto found = engines_.find(name);
    if (found == engines_.end()) co_return;
    Engine& engine = *found->second;
    auto session = engine.sessions.lower_bound(from);
    for (std::size_t i = 0; i < kShownPerStep && session != engine.sessions.end(); ++i, ++session)
      session->second->ring.SetEngineReads(engine.on(store::Switch::kReads));
    if (session == engine.sessions.end()) {
      ForgetIfNothing(found);
      co_return;
    }
    from = session->first;
    co_await Yield();
  }
}

}  // namespace cistern::server
