// SPDX-License-Identifier: Apache-2.0
// A fabric within one process, for tests and storms: each read takes a while and then copies what is there
// at that time. It may be slow, refuse, or say nothing. A read that its caller has given up lands after all,
// some time later, until its reader is closed: a device knows nothing of its caller's deadline.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/random.h"
#include "base/task_group.h"
#include "net/fabric.h"

namespace cistern::net {

class SimulatedFabric final : public Fabric {
 public:
  struct Faults {
    std::int64_t read_us = 20;       // half of it to one and a half
    double refused = 0;              // of reads
    double silent = 0;               // of reads: they say nothing
    double late = 0.5;               // of reads that were given up: they land
    std::int64_t late_us = 100'000;  // at most, from when they were given up
  };

  // Members that reach each other have one map of them, which is borrowed.
  using Members = std::map<std::uint8_t, SimulatedFabric*>;

  // The seed decides all that chance decides.
  SimulatedFabric(Executor& executor, Members& members, std::string kind = "simulated",
                  std::uint64_t seed = 0)
      : executor_(executor),
        members_(members),
        kind_(std::move(kind)),
        number_(static_cast<std::uint8_t>(members.size())),
        random_((seed << 8) + number_) {
    members_[number_] = this;
  }
  ~SimulatedFabric() override { members_[number_] = nullptr; }

  Executor& executor() override { return executor_; }
  const std::string& kind() const override { return kind_; }
  ConstPiece name() const override { return name_; }
  std::optional<FabricPlace> PlaceOf(ConstPiece bytes) const override {
    for (const auto& [key, memory] : memory_) {
      if (!bytes.empty() && bytes.data() >= memory.data() &&
          bytes.data() + bytes.size() <= memory.data() + memory.size())
        return FabricPlace{static_cast<std::uint64_t>(bytes.data() - memory.data()), key};
    }
    return std::nullopt;
  }
  Result<std::unique_ptr<FabricReader>> ReaderOf(ConstPiece name) override {
    ++opened;
    if (name.size() != 1) return Error(Code::kInvalid, "simulated fabric: no name");
    return std::make_unique<Reader>(*this, std::to_integer<std::uint8_t>(name[0]));
  }

  void Register(ConstPiece memory) { memory_[++last_key_] = memory; }
  void DeregisterAll() { memory_.clear(); }

  Faults faults;
  int opened = 0;
  int reads = 0;
  std::uint64_t landed = 0;  // of them
  std::uint64_t late = 0;    // landed after they were given up
  // Reads into bytes that a given up one may yet write to, which its caller has to keep out of use.
  std::uint64_t unsafe = 0;

 private:
  class Reader final : public FabricReader {
   public:
    Reader(SimulatedFabric& fabric, std::uint8_t member)
        : fabric_(fabric), member_(member), buffer_(kReads * kReadBytes), late_(fabric.executor_) {}
    ~Reader() override {
      Reader::Close();
      late_.Drop();
    }
    Executor& executor() override { return fabric_.executor_; }
    Piece buffer() override { return buffer_; }
    Task<Status> Read(FabricPlace from, Piece into, Instant deadline) override {
      ++fabric_.reads;
      if (MayBeWritten(into)) ++fabric_.unsafe;
      const Faults& of = fabric_.faults;
      const bool silent = fabric_.random_.Chance(of.silent);
      const bool refused = fabric_.random_.Chance(of.refused);
      const auto us = static_cast<std::uint64_t>(of.read_us);
      Instant lands =
          executor().Now().PlusUs(static_cast<std::int64_t>(us / 2 + fabric_.random_.Below(us + 1)));
      if (silent) lands = Instant::Never();
      // Also where the task is dropped.
      struct UnderWay {
        Reader& reader;
        const FabricPlace from;
        const Piece into;
        bool landed = false;
        ~UnderWay() {
          if (!landed) reader.GiveUp(from, into);
        }
      };
      UnderWay under_way{*this, from, into};
      const Status waited = co_await closed_.Wait(std::min(lands, deadline));
      if (waited.ok()) co_return Status(Code::kGone, "simulated fabric: closed");
      if (deadline <= lands) co_return Status(Code::kTooLate, "simulated fabric: no answer");
      if (refused || !Copy(from, into)) co_return Status(Code::kGone, "simulated fabric: refused");
      under_way.landed = true;
      ++fabric_.landed;
      co_return Status();
    }
    void Close() override { closed_.Set(); }

   private:
    bool Copy(FabricPlace from, Piece into) {
      const auto member = fabric_.members_.find(member_);
      const ConstPiece memory = member == fabric_.members_.end() || member->second == nullptr
                                    ? ConstPiece()
                                    : member->second->MemoryOf(from.key);
      if (from.address > memory.size() || into.size() > memory.size() - from.address) return false;
      std::memcpy(into.data(), memory.data() + from.address, into.size());
      return true;
    }
    bool MayBeWritten(Piece into) const {
      return std::ranges::any_of(given_up_, [into](Piece other) {
        return into.data() < other.data() + other.size() && other.data() < into.data() + into.size();
      });
    }
    void GiveUp(FabricPlace from, Piece into) {
      if (closed_.is_set()) return;
      given_up_.push_back(into);
      if (!fabric_.random_.Chance(fabric_.faults.late)) return;
      const auto us = fabric_.random_.Below(static_cast<std::uint64_t>(fabric_.faults.late_us) + 1);
      late_.Spawn(LandLate(from, into, executor().Now().PlusUs(static_cast<std::int64_t>(us))));
    }
    Task<void> LandLate(FabricPlace from, Piece into, Instant lands) {
      const Status closed = co_await closed_.Wait(lands);
      if (!closed.ok() && Copy(from, into)) ++fabric_.late;
    }

    SimulatedFabric& fabric_;
    const std::uint8_t member_;
    std::vector<std::byte> buffer_;
    Event closed_;
    std::vector<Piece> given_up_;
    TaskGroup late_;
  };

  ConstPiece MemoryOf(std::uint64_t key) const {
    const auto found = memory_.find(key);
    return found == memory_.end() ? ConstPiece() : found->second;
  }

  Executor& executor_;
  Members& members_;
  const std::string kind_;
  const std::uint8_t number_;
  const std::array<std::byte, 1> name_{std::byte{number_}};
  Random random_;
  std::map<std::uint64_t, ConstPiece> memory_;
  std::uint64_t last_key_ = 0;
};

}  // namespace cistern::net
