// SPDX-License-Identifier: Apache-2.0
// The faults that come from outside of any client, at a moment that the seed decides.
#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/format.h"
#include "client.h"
#include "flash/format.h"
#include "residency/resizer.h"
#include "world.h"

namespace cistern::storm {

namespace {
constexpr std::array<const char*, 2> kJournalFiles = {"node/journal", "node/journal.copy"};
}  // namespace

void World::Inject() {
  // Damage comes more often than what else there is: half of it is overwritten before anybody looks.
  static constexpr Fault kFromOutside[] = {
      Fault::kCrash,         Fault::kClientDies,   Fault::kClockBack,     Fault::kJournal,
      Fault::kResize,        Fault::kResize,       Fault::kResize,        Fault::kLeaseExpires,
      Fault::kLeaseExpires,  Fault::kFlipBody,     Fault::kFlipBody,      Fault::kFlipBody,
      Fault::kFlipBody,      Fault::kFlipSeal,     Fault::kFlipSeal,      Fault::kFlipSeal,
      Fault::kFlipSeal,      Fault::kFlipIndex,    Fault::kFlipIndex,     Fault::kFlipIndex,
      Fault::kFlipIndex,     Fault::kFlipIndex,    Fault::kFlipDirectory, Fault::kFlipDirectory,
      Fault::kFlipDirectory, Fault::kFlipDirectory};
  if (node() != nullptr && random().Below(40) == 0) node()->WantIdle();
  if (has_lower_tier()) {
    TendDevices();
    ChangeCosts();
    // The rarer ones have more to wait for.
    static constexpr Fault kOfLowerTier[] = {
        Fault::kKill,      Fault::kKill,       Fault::kReboot,     Fault::kReboot,     Fault::kTorn,
        Fault::kTorn,      Fault::kReadError,  Fault::kHang,       Fault::kHang,       Fault::kHang,
        Fault::kLostFlush, Fault::kLostFlush,  Fault::kNoSpace,    Fault::kFlipRead,   Fault::kFlipMedia,
        Fault::kFlipMedia, Fault::kWriteError, Fault::kTakeOut,    Fault::kTakeOut,    Fault::kTakeOut,
        Fault::kKill,      Fault::kTakeOut,    Fault::kShortIo,    Fault::kWriteError, Fault::kWriteError,
        Fault::kLostFlush, Fault::kNoSpace,    Fault::kElsewhere,  Fault::kElsewhere,  Fault::kElsewhere,
        Fault::kReadError, Fault::kFlipRead,   Fault::kShortIo,    Fault::kElsewhere,  Fault::kLostFlush,
        Fault::kFlipMedia, Fault::kFlipMedia,  Fault::kFlipMedia,  Fault::kElsewhere,  Fault::kLostFlush,
        Fault::kTorn,      Fault::kTorn,       Fault::kElsewhere,  Fault::kElsewhere,  Fault::kLostFlush,
        Fault::kLostFlush, Fault::kReadError,  Fault::kLostFlush,  Fault::kElsewhere,  Fault::kElsewhere,
        Fault::kFlipRead,  Fault::kHang,       Fault::kWriteError, Fault::kNoSpace,    Fault::kNoSpace};
    for (int tries = 0; tries < 10; ++tries) {
      // Of two drawn kinds the one that was seen less often, so that none stays scarce.
      Fault kind = kOfLowerTier[random().Below(std::size(kOfLowerTier))];
      Fault other = kOfLowerTier[random().Below(std::size(kOfLowerTier))];
      if (faults_.Wants(other) && faults_[other].seen < faults_[kind].seen) kind = other;
      if (faults_.Wants(kind) && InjectLowerTier(kind)) return;
    }
  }
  for (int tries = 0; tries < 6; ++tries) {
    Fault kind = kFromOutside[random().Below(std::size(kFromOutside))];
    if (faults_.Wants(kind) && InjectOne(kind)) return;
  }
}

bool World::InjectOne(Fault kind) {
  switch (kind) {
    case Fault::kCrash: return KillSome(kind);
    case Fault::kClientDies: {
      Client& client = *clients_[random().Below(clients_.size())];
      if (!client.busy()) return false;
      faults_.Injected(kind);
      faults_.Seen(kind);
      client.Die();
      return true;
    }
    case Fault::kFlipBody:
    case Fault::kFlipSeal:
    case Fault::kFlipDirectory: return FlipRecord(kind);
    case Fault::kFlipIndex: return FlipEntry();
    case Fault::kClockBack:
      if (clocks_back_ > 2) return false;
      LatestTime();
      faults_.Injected(kind);
      clocks_back_++;
      model_.Trace("clock back at ", clock_.Wall().seconds);
      clock_.StepWall(-static_cast<std::int64_t>(1 + random().Below(90)));
      return true;
    case Fault::kLeaseExpires: {
      std::uint64_t living = 0;
      for (const LeasePtr& lease : leases_) living += !lease->released && clock_.Now() < lease->deadline;
      if (living == 0) return false;
      static constexpr std::int64_t kJumps[] = {500, 20'000, 1'000'000, 10'000'000, 61'000'000};
      clock_.AdvanceUs(kJumps[random().Below(5)]);
      LatestTime();
      model_.Trace("time jumps to ", clock_.Now().ns / 1000, " us, wall ", clock_.Wall().seconds);
      std::uint64_t ended = living;
      for (const LeasePtr& lease : leases_) ended -= !lease->released && clock_.Now() < lease->deadline;
      faults_.Injected(kind, ended);
      faults_.Seen(kind, ended);
      return true;
    }
    case Fault::kResize: {
      if (geometry_.header_count == 1 || node() == nullptr) return false;
      const auto headers = static_cast<std::uint32_t>(1 + random().Below(geometry_.header_count));
      if (headers == node()->store().resizer().wanted()) return false;
      faults_.Injected(kind);
      faults_.Seen(kind);
      model_.Trace("memory becomes ", headers, " of ", geometry_.header_count, " chunks");
      node()->WantHeaders(headers);
      return true;
    }
    case Fault::kJournal:
      disk_faulty_ = true;
      faults_wanted_ = 1 + random().Below(3);
      return true;
    default: return false;
  }
}

cistern::io::Fault World::AskDisk(const io::IoRequest&) {
  if (!disk_faulty_ || faults_wanted_ == 0 || random().Below(2) == 0) return {};
  // A start writes both files anew and ends with the first error: most of the errors are for who serves.
  if (node() == nullptr && random().Below(8) != 0) return {};
  faults_wanted_--;
  faults_.Injected(Fault::kJournal);
  faults_.Seen(Fault::kJournal);
  switch (random().Below(4)) {
    case 0:
    case 1: return {cistern::io::FaultKind::kIoError, 0};
    case 2: return {cistern::io::FaultKind::kShort, random().Below(40)};
    default: return {cistern::io::FaultKind::kDelay, 1 + random().Below(20'000)};
  }
}

bool World::KillSome(Fault kind, bool anyhow) {
  if (nodes_.empty() || nodes_.back()->gone() || nodes_.back()->core()->ended()) return false;
  SimNode& last = *nodes_.back();
  if (!last.serving() && clean_start_) return false;
  if (!last.surveyed() && !anyhow) {
    // Mostly in the middle of something, also while it starts.
    if (last.under_way() == 0 && !last.midway() && last.serving()) return false;
    if (!last.midway() && random().Below(4) != 0) return false;
    if (has_lower_tier() && !last.serving() && random().Below(6) != 0) return false;
  }
  if (faults_.Wants(kind)) {
    faults_.Injected(kind);
    faults_.Seen(kind);
  }
  KillNode(kind == Fault::kKill ? Death::kKill : kind == Fault::kCrash ? Death::kPowerCut : Death::kReboot);
  return true;
}

void World::KillNode(Death death) {
  static constexpr std::string_view kNames[] = {"killed", "without power", "rebooted"};
  model_.Trace("node ", kNames[static_cast<std::size_t>(death)]);
  // One that died while it started has taken nothing away.
  if (nodes_.back()->serving()) warm_lower_.clear();
  if (nodes_.back()->surveyed() && told_exact_) {
    // Of flash a power cut may take what was acknowledged; of the simulated media it takes nothing, and where
    // memory goes too, what hangs below nothing of it stays.
    std::ranges::copy_if(told_, std::back_inserter(warm_lower_), [this, death](const LowerBlock& lower) {
      return lower.state == LowerBlock::State::kThere && (death != Death::kReboot || OnlyInLowerTier(lower));
    });
    clean_start_ = random().Below(4) != 0;
    if (clean_start_) deadlines_ = {};
    model_.Trace("survey: ", warm_lower_.size(), " of ", told_.size(), " lie in the lower tier");
  }
  const bool torn = WritesUnderWay();
  const std::uint64_t journal_state = nodes_.back()->serving() ? nodes_.back()->journal_state() : 0;
  media_.Stop();
  media_unknown_ = media_.id() != media_known_;
  io::LateIo late = nodes_.back()->Kill(death != Death::kKill);
  if (death == Death::kKill) {
    // The journal's descriptor holds the lock of its directory as the devices' do theirs.
    late.CancelSome(random());
    late.LandAll("node/");
    if (!late.empty()) late_.push_back(std::move(late));
    // Soon, or not before the successor has long been at work, if it does not wait.
    static constexpr std::uint64_t kOdds[] = {12, 12, 500, 10'000};
    late_odds_ = kOdds[random().Below(std::size(kOdds))];
  } else {
    late_.clear();
    power_was_cut_ = true;
    if (torn && faults_.Wants(Fault::kTorn)) {
      faults_.Injected(Fault::kTorn);
      faults_.Seen(Fault::kTorn);
    }
    unsynced_.clear();
    NoteLostWrites();
    if (std::exchange(lost_flush_, false)) faults_.Seen(Fault::kLostFlush);
  }
  if (death == Death::kReboot) {
    // A host that has just started knows the time from its wall clock alone.
    LatestTime();
    ++reboots_;
    ticked_wall_ = 0;
    scheduler_.DropOrphans();
    damage_.Clear();
    harmed_.clear();
    FormatMemory();
  }
  for (PutNo put = 1; put < model_.puts(); ++put) model_.UnfinishedEnded(put, model_.Now());
  for (auto& engine : engines_) {
    NewToken(*engine);
    engine->sessions = 0;
  }
  for (LeasePtr& lease : leases_) lease->released = lease->lapsed = true;
  warm_known_ = false;
  planned_.reset();
  // Damage done to a directory tells at a restart, a third of it.
  for (int i = 0; i < 6; ++i) {
    if (faults_.Wants(Fault::kFlipDirectory)) FlipRecord(Fault::kFlipDirectory);
  }
  const bool restored = death == Death::kReboot && RestoreJournal(journal_state);
  if (!restored && faults_.Wants(Fault::kJournal)) HarmJournal();
  if (flash_ && (!older_journal_ || older_journal_->dropped_namespaces != DroppedNamespaces() ||
                 random().Below(4) == 0)) {
    KeepJournal();
  }
}

std::size_t World::DroppedNamespaces() const {
  std::size_t dropped = 0;
  for (const auto& tree : trees_) dropped += tree.gone.size();
  return dropped;
}

// Only where both are whole.
void World::KeepJournal() {
  if (harmed_journal_ == boots_) return;
  OlderJournal older;
  for (std::size_t i = 0; i < kJournalFiles.size(); ++i) {
    const auto bytes = disk_.Durable(kJournalFiles[i]);
    if (bytes.empty()) return;
    older.files[i].assign(bytes.begin(), bytes.end());
  }
  older.dropped_namespaces = DroppedNamespaces();
  older_journal_ = std::move(older);
}

// Somebody copies an older journal back. `state` is that of the journal of the boot that has just ended,
// which is later than the older one's: a device that names it tells (R10), so nothing of before is believed,
// and what was dropped stays away. A namespace that was dropped since would be there again, empty.
bool World::RestoreJournal(std::uint64_t state) {
  if (!flash_ || !older_journal_ || state == 0 || random().Below(3) == 0 ||
      older_journal_->dropped_namespaces != DroppedNamespaces())
    return false;
  const bool told = std::ranges::any_of(flash_->devices, [&](const flash::FlashDeviceOptions& device) {
    const auto superblock = flash::DecodeSuperblock(disk_.Bytes(device.path + "/flash"));
    return superblock && superblock->journal_mark.state >= state;
  });
  if (!told || !disk_.Exists(kJournalFiles[0]) || !disk_.Exists(kJournalFiles[1])) return false;
  for (std::size_t i = 0; i < kJournalFiles.size(); ++i)
    disk_.Replace(kJournalFiles[i], older_journal_->files[i]);
  model_.Trace("an older journal is copied back");
  older_journal_.reset();
  warm_lower_.clear();
  // The device that tells is read as it is.
  clean_start_ = true;
  deadlines_ = {};
  faults_.Injected(Fault::kJournal);
  faults_.Seen(Fault::kJournal);
  return true;
}

// One of the journal's two files, mostly what was appended last, and not again before both were written anew.
void World::HarmJournal() {
  if (harmed_journal_ == boots_) return;
  const std::string path = boots_ % 2 == 0 ? "node/journal" : "node/journal.copy";
  const std::string other = boots_ % 2 == 0 ? "node/journal.copy" : "node/journal";
  const std::uint64_t size = disk_.Bytes(path).size();
  // While they are written anew only one of them may be whole, and to a power cut until their names are
  // synced.
  constexpr std::size_t kHead = 40;
  const auto same_head = [&](std::span<const std::byte> of_other) {
    return of_other.size() >= kHead &&
           std::ranges::equal(disk_.Bytes(path).first(kHead), of_other.first(kHead));
  };
  if (size < kHead || !same_head(disk_.Bytes(other)) || !same_head(disk_.Durable(other))) return;
  const std::uint64_t back =
      random().Below(random().Below(3) == 0 ? size : std::min<std::uint64_t>(size, 80));
  model_.Trace("damage to ", path, " at byte ", size - 1 - back);
  disk_.Flip(path, size - 1 - back, std::byte{1} << random().Below(8));
  harmed_journal_ = boots_;
  faults_.Injected(Fault::kJournal);
  faults_.Seen(Fault::kJournal);
}

// A record that a reader would find now.
std::optional<World::Somewhere> World::SomeRecord() {
  for (int tries = 0; tries < 40; ++tries) {
    BlockId block;
    block.ns = static_cast<std::uint32_t>(random().Below(trees_.size()));
    block.group = static_cast<std::uint16_t>(random().Below(trees_[block.ns].groups()));
    block.code = MakeCode(static_cast<std::uint32_t>(random().Below(random().Below(kTrees) + 1)),
                          1 + static_cast<std::uint32_t>(random().Below(kTreeBlocks - 1)));
    if (model_.PutsOf(block).empty()) continue;
    Look look = LookAt(block, false);
    if (look.outcome == arena::ReadOutcome::kHit) return Somewhere{block, look.place, look.seen.body_bytes};
  }
  return std::nullopt;
}

bool World::FlipRecord(Fault kind) {
  auto found = SomeRecord();
  if (!found) return false;
  Somewhere at = *found;
  auto slot = arena::CheckPlace(plain_, arena_, at.place, at.body_bytes);
  if (!slot) return false;
  auto seal = record::CheckSeal({arena_.slot(at.place) + slot->trailer_offset, slot->trailer_room});
  if (!seal) return false;
  auto bit = static_cast<unsigned>(random().Below(8));
  std::byte* base = arena_.slot(at.place);
  if (kind == Fault::kFlipBody) {
    damage_.FlipBit(kind, base + random().Below(at.body_bytes), bit);
  } else if (kind == Fault::kFlipSeal) {
    std::uint32_t bytes = record::TrailerBytes(seal->segment_count(), seal->part_count());
    damage_.FlipBit(kind, base + slot->trailer_offset + random().Below(bytes), bit);
  } else {
    auto* entry = reinterpret_cast<std::byte*>(arena_.directory(at.place));
    damage_.FlipBit(kind, entry + random().Below(offsetof(arena::DirectoryEntry, crc) + 4), bit);
    for (Warm& warm : warm_) warm.damaged |= warm.place == at.place;
  }
  model_.Trace(FaultName(kind), ": ", TextOf(at.block), " place ", at.place);
  Disturb(at.block.ns, at.block.code);
  // A start may refuse the record with its descendants, fail, and leave the next one no damage to see.
  std::erase_if(warm_lower_, [&](const LowerBlock& lower) {
    return lower.ns == at.block.ns && model_.Below(lower.ns, lower.code, at.block.code);
  });
  if (kind != Fault::kFlipDirectory) {
    harmed_.push_back(at);
    curious_.push_back(at.block);
  }
  return true;
}

std::optional<std::uint64_t> World::EntryOf(const BlockId& block) {
  if (incarnations_[block.ns] == 0) return std::nullopt;
  arena::Fingerprint fingerprint = arena::FingerprintOf(index_.header()->incarnations[slots_[block.ns]],
                                                        block.group, KeyOf(block.ns, block.code));
  for (int which = 0; which < 2; ++which) {
    for (std::uint32_t i = 0; i < arena::kEntriesPerBucket; ++i) {
      std::uint64_t number = index_.bucket(fingerprint, which) + i;
      const arena::IndexEntry* entry = index_.entry(number);
      if (entry->fingerprint[0] == fingerprint.words[0] && entry->fingerprint[1] == fingerprint.words[1])
        return number;
    }
  }
  return std::nullopt;
}

bool World::DamagedEntry(const BlockId& block) {
  auto number = EntryOf(block);
  return !number || damage_.Standing(index_.entry(*number), sizeof(arena::IndexEntry));
}

// A bit of an entry, or words that belong to another one: where it leads, what it says of the record.
bool World::FlipEntry() {
  auto found = SomeRecord();
  if (!found) return false;
  BlockId block = found->block;
  auto number = EntryOf(block);
  if (!number) return false;
  curious_.push_back(block);
  model_.Trace("flip-index: ", TextOf(block));
  arena::IndexEntry* entry = index_.entry(*number);
  if (random().Below(2) == 0) {
    auto second = SomeRecord();
    auto other = second ? EntryOf(second->block) : std::nullopt;
    if (!other || *other == *number) return false;
    damage_.Overwrite(Fault::kFlipIndex, &entry->place_and_bytes, index_.entry(*other)->place_and_bytes);
    if (random().Below(2) == 0) entry->rest = index_.entry(*other)->rest;
    return true;
  }
  std::uint64_t* words_of[] = {&entry->fingerprint[0], &entry->fingerprint[1], &entry->place_and_bytes,
                               &entry->rest};
  auto* word = reinterpret_cast<std::byte*>(words_of[random().Below(4)]);
  damage_.FlipBit(Fault::kFlipIndex, word + random().Below(8), static_cast<unsigned>(random().Below(8)));
  return true;
}

}  // namespace cistern::storm
