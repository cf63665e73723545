-- Sliding log: a list with an entry for each call, oldest first: when it came, its hits, and all hits up to and with it: three doubles
-- that hold whole numbers. The twin of sliding_log.rs.
local sliding_log = {}

-- The most entries.
local ENTRIES_MAX = 10000
-- Sums wrap here, so that they stay exact.
local SUM_END = 2 ^ 52

-- Returns an entry: its time, its hits, and the sum of hits since the first entry that counts.
local function entry(key, index, log)
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  local packed = redis.call('LINDEX', key, index)
  if #packed ~= 24 then
    error({err = 'ERR value is not a log'})
  end
  local at, hits, sum = struct.unpack('<ddd', packed)
  return at, hits, (sum - log.base) % SUM_END
end

-- Returns the first index from which a test holds, else the end (binary search).
local function first(key, from, to, log, test)
  -- equivalent: `<` -> `~=`: it is never more
  while from < to do
    local middle = math.floor((from + to) / 2)
    local at, _, sum = entry(key, middle, log)
    if test(at, sum) then
      to = middle
    else
      from = middle + 1
    end
  end
  return from
end

-- Returns what is spent as of now, whether the stored value is current, and the log: the entries that count (from `gone`, before `to`),
-- their hits (`older`), and the hits at this time (`present`).
function sliding_log.load(key, now, deepest, period)
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  local length = redis.call('LLEN', key)
  -- equivalent: `0` -> `-1`, `1`: it is set before it is read
  local log = {base = 0, gone = 0, to = length, length = length, older = 0, found = 0, present = 0}
  -- equivalent: `==` -> `<=`: a count is never negative
  if length == 0 then
    return 0, true, log
  end
  local at, hits, sum = entry(key, 0, log)
  if now - at >= period then
    -- equivalent: `1` -> `0`: one more entry is read, which is known not to match
    log.gone = first(key, 1, length, log, function(came) return now - came < period end)
    -- equivalent: `==` -> `>=`: counts are never negative, indexes never beyond the end
    if log.gone == length then
      return 0, false, log
    end
    -- equivalent: `at` -> `deepest`: counts are never negative, indexes never beyond the end
    at, hits, sum = entry(key, log.gone, log)
  end
  log.base = (sum - hits) % SUM_END
  log.newest, log.hits, log.older = entry(key, -1, log)
  -- equivalent: `==` -> `<=`: a count is never negative
  local kept = log.gone == 0
  -- Entries in the future mean that the clock went back: they are taken as of now.
  if log.newest > now then
    local total = log.older
    kept, log.older = false, 0
    -- equivalent: `>` -> `>=`: one more entry is read, which is known not to match
    log.to = first(key, log.gone, length, log, function(came) return came > now end)
    -- equivalent: `>` -> `~=`: a count is never negative
    if log.to > log.gone then
      log.newest, log.hits, log.older = entry(key, log.to - 1, log)
    end
    log.present = total - log.older
  end
  log.found = log.older
  -- equivalent: `deepest` -> `at`, `now`: no count reaches the microseconds since 1970
  return math.min(log.older + log.present, deepest), kept, log
end

-- Returns what is spent after the call, and whether the state changed.
function sliding_log.charged(spent, cost, deepest, log)
  local after = charged(spent, cost, deepest)
  log.present = log.present + after - spent
  -- A refund beyond `present` is taken from the newest older entries.
  log.older = log.older + math.min(log.present, 0)
  log.present = math.max(log.present, 0)
  -- equivalent: `~=` -> `<`, `>`: the sum is equal only if nothing changed or hits came and went
  return after, after ~= spent
end

-- Returns the index of the entry that reaches a sum of hits.
local function reaching(key, hits, log)
  return first(key, log.gone, log.to, log, function(_, sum) return sum >= hits end)
end

function sliding_log.keep(key, spent, log, now, period)
  -- equivalent: `==` -> `<=`: a count is never negative
  if spent == 0 then
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    redis.call('DEL', key)
    return
  end
  local to, newest, hits = log.to, log.newest, log.hits
  -- equivalent: `==` -> `<=`: a count is never negative
  if log.older == 0 then
    to = log.gone
  -- equivalent: `<` -> `~=`: it is never more
  -- equivalent: `<` -> `<=`: counts are never negative, indexes never beyond the end
  elseif log.older < log.found then
    local reached
    to = reaching(key, log.older, log) + 1
    newest, hits, reached = entry(key, to - 1, log)
    hits = hits - (reached - log.older)
  end
  -- equivalent: `==` -> `<=`: a count is never negative
  if to == log.gone then
    -- Redis checks for memory before the first write of a script only, so an absent key is not deleted.
    -- equivalent: `>` -> `~=`: a count is never negative
    -- equivalent: `>` -> `>=`; `0` -> `-1`: counts are never negative, indexes never beyond the end
    if log.length > 0 then
      redis.call('DEL', key)
    end
  -- equivalent: `>` -> `~=`: a count is never negative
  -- equivalent: `<` -> `~=`: it is never more
  -- equivalent: `>` -> `>=`; `0` -> `-1`; `<` -> `<=`: counts are never negative, indexes never beyond the end
  elseif log.gone > 0 or to < log.length then
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    redis.call('LTRIM', key, log.gone, to - 1)
  end
  local sum = (log.base + log.older) % SUM_END
  -- equivalent: `<` -> `~=`: it is never more
  -- equivalent: `>` -> `~=`: a count is never negative
  -- equivalent: `<` -> `<=`: counts are never negative, indexes never beyond the end
  if log.older < log.found and to > log.gone then
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    redis.call('LSET', key, -1, struct.pack('<ddd', newest, hits, sum))
  end
  -- equivalent: `>` -> `~=`: a count is never negative
  if log.present > 0 then
    sum = (sum + log.present) % SUM_END
    -- equivalent: `>` -> `~=`: a count is never negative
    -- equivalent: `==` -> `>=`; `>=` -> `==`: counts are never negative, indexes never beyond the end
    if to > log.gone and (newest == now or to - log.gone >= ENTRIES_MAX) then
      -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
      redis.call('LSET', key, -1, struct.pack('<ddd', now, hits + log.present, sum))
    else
      -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
      redis.call('RPUSH', key, struct.pack('<ddd', now, log.present, sum))
    end
    newest = now
  end
  -- 2 ms longer than the period: expiry has a resolution of 1 ms and uses a clock read earlier.
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  redis.call('PEXPIRE', key, milliseconds(math.ceil((newest + period - now) / 1000) + 2))
end

-- The extra values of a verdict: how many of the oldest hits have to expire for this call to pass, when the last of them came, when the
-- newest came, and the number of entries.
function sliding_log.extra_reply(reply, log, key, now, spent, over, cost, full)
  local leaving = spent + math.max(cost, 0) - full
  -- equivalent: `4` -> `0`, `3`; `0` -> `-1`, `1`: counts are never negative, indexes never beyond the end
  reply[2], reply[3], reply[4], reply[5] = 0, 0, 0, log.to - log.gone
  -- equivalent: `<=` -> `<`: counts are never negative, indexes never beyond the end
  if over and leaving <= spent then
    -- equivalent: `reply[2], reply[3] = spent, now` -> ``; `2` -> `0`, `3`; `spent` -> `full`, `cost`, `now`: counts are never negative, indexes never beyond the end
    reply[2], reply[3] = spent, now
    if leaving <= log.older then
      local at, _, reached = entry(key, reaching(key, leaving, log), log)
      reply[2], reply[3] = math.min(reached, log.older), at
    end
  end
  if log.present > 0 then
    reply[4] = now
  -- equivalent: `>` -> `~=`: a count is never negative
  -- equivalent: `>` -> `>=`; `0` -> `-1`: counts are never negative, indexes never beyond the end
  elseif log.older > 0 then
    reply[4] = log.newest
    -- equivalent: `<` -> `~=`: it is never more
    -- equivalent: `<` -> `<=`: counts are never negative, indexes never beyond the end
    if log.older < log.found then
      reply[4] = entry(key, reaching(key, log.older, log), log)
    end
  end
end
