// SPDX-License-Identifier: Apache-2.0
// Reads of other members' memory by libfabric, over verbs (InfiniBand, RoCE) and EFA. The library is found at
// run time: a node is built, starts and serves without it, and without a device for it.
//
// Its own shared-memory provider is never used, because strangers of the host may write there; its TCP is
// slower than a rail, and serves to test all this without a device.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "io/loop.h"
#include "net/fabric.h"

struct fi_info;
struct fid_domain;
struct fid_fabric;
struct fid_mr;

namespace cistern::net {

struct LibfabricOptions {
  // As libfabric calls it. Empty: the first of "efa" and "verbs;ofi_rxm" that has a device here.
  std::string provider;
  // "10.0.0.7": the device has this address of the host. Empty: any.
  std::string address;
  // As with a provider that cannot signal.
  bool polled = false;
};

struct LibfabricCalls;  // net/libfabric_calls.h
class LibfabricEndpoint;

class Libfabric final : public Fabric {
 public:
  // Registered in pieces of at most so many bytes: what is taken back costs the registration of no more anew.
  static constexpr std::uint64_t kPieceBytes = 1ull << 30;

  // Takes milliseconds. kMiss: nothing here to read by, and the message says what is missing; kIoError. The
  // loop is borrowed.
  static Result<std::unique_ptr<Libfabric>> Open(io::Loop& loop, const LibfabricOptions& options);
  ~Libfabric() override;

  Executor& executor() override { return loop_.executor(); }
  const std::string& kind() const override { return kind_; }
  ConstPiece name() const override { return name_; }
  std::optional<FabricPlace> PlaceOf(ConstPiece bytes) const override;
  Result<std::unique_ptr<FabricReader>> ReaderOf(ConstPiece name) override;

  // Of the device: "rxe0".
  const std::string& device() const { return device_; }

  // From any thread, and they take time: the host's memory stays where it is from Register to Deregister.

  // Others may read it, of which nothing is registered yet, from now on. kBusy: the host does not let so much
  // memory be locked. What was registered by then stays so.
  Status Register(std::span<const std::byte> memory);
  // Nobody reads it any more when this returns: reads under way fail.
  void Deregister(std::span<const std::byte> memory);
  std::uint64_t registered_bytes() const;

 private:
  friend class LibfabricReader;
  struct Registered {
    std::uint64_t bytes = 0;
    fid_mr* region = nullptr;
    FabricPlace place;  // of its first byte
  };

  explicit Libfabric(io::Loop& loop);
  Status Start(const LibfabricOptions& options);
  Status RegisterPiece(std::span<const std::byte> memory);
  Status Failed(const std::string& what, long result) const;
  // Memory that this process lets the device read, or write to.
  Result<fid_mr*> MakeRegion(std::span<const std::byte> memory, std::uint64_t access);

  io::Loop& loop_;
  std::unique_ptr<const LibfabricCalls> calls_;
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  bool polled_ = false;
  std::string kind_, device_;
  std::vector<std::byte> name_;
  std::unique_ptr<LibfabricEndpoint> serving_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, Registered> registered_;
};

}  // namespace cistern::net
