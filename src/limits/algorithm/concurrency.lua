-- Concurrency: a sorted set of names by the end of their leases. The twin of concurrency.rs.
local concurrency = {}

-- The offset of the name in an argument.
local NAME_FROM = 44

-- Returns the number of holders as of now, whether the stored value is current, and the state.
function concurrency.load(key, now, deepest, lease)
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  local found = redis.call('ZCARD', key)
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  -- equivalent: `'(%.0f'` -> `'(%.f'`, `'(%0f'`: both print the time, and its own microsecond makes no difference
  local count = redis.call('ZCOUNT', key, string.format('(%.0f', now), '+inf')
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  -- equivalent: `0` -> `-1`, `1`: only the first is used, and no lease is that old
  local last = tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]) or 0
  -- A lease that ends later than a new one means that the clock went back, or that leases were longer.
  local latest = now + lease
  local set = {key = key, gone = found - count, is_late = last > latest, latest = latest, now = now, changed = {}, order = {}}
  -- equivalent: `==` -> `<=`: a count is never negative
  return count, set.gone == 0 and not set.is_late, set
end

-- Whether a name is a holder.
local function holds(set, name)
  local changed = set.changed[name]
  if changed ~= nil then
    return changed
  end
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  local last = redis.call('ZSCORE', set.key, name)
  return last and tonumber(last) > set.now
end

-- The cost of a call: 0 for a present holder, and for a release by another name.
function concurrency.price(cost, full, set, argument)
  -- equivalent: `cost` -> `argument`: a peek does not get here, or changes nothing
  local is_there = cost ~= 0 and holds(set, string.sub(argument, NAME_FROM))
  -- equivalent: `0` -> `-1`; `>` -> `>=`: a peek does not get here, or changes nothing
  if is_there and cost > 0 then
    return 0, math.huge
  end
  -- equivalent: `<` -> `<=`; `0` -> `1`: a peek does not get here, or changes nothing
  if cost < 0 and not is_there then
    return 0, full
  end
  return cost, full
end

-- Returns the number of holders after the call, and whether the state changed.
function concurrency.charged(spent, cost, deepest, set, wanted, argument)
  local name = string.sub(argument, NAME_FROM)
  -- equivalent: `<` -> `<=`; `0` -> `1`; `==` -> `>=`: a peek does not get here, or changes nothing
  if wanted == 0 or (wanted < 0 and cost == 0) then
    return spent, false
  end
  -- equivalent: `>` -> `>=`; `0` -> `-1`: a peek does not get here, or changes nothing
  set.changed[name] = wanted > 0
  set.order[#set.order + 1] = name
  return spent + cost, true
end

function concurrency.keep(key, spent, set, now)
  -- equivalent: `>` -> `~=`: a count is never negative
  -- equivalent: `>` -> `>=`; `0` -> `-1`: counts are never negative, indexes never beyond the end
  if set.gone > 0 then
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    -- equivalent: `'-inf'` -> `''`: no time is before 1970
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  end
  if set.is_late then
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    -- equivalent: `'(%.0f'` -> `'%.0f'`, `'(%0f'`, `'(%.f'`: both print the time, and its own microsecond makes no difference
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', set.latest), '+inf')) do
      -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
      redis.call('ZADD', key, set.latest, name)
    end
  end
  for _, name in ipairs(set.order) do
    if set.changed[name] then
      redis.call('ZADD', key, set.latest, name)
    else
      -- equivalent: `call` -> `pcall`: an error keeps the name, so PEXPIRE follows and fails too
      redis.call('ZREM', key, name)
    end
  end
  -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
  -- equivalent: `0` -> `-1`, `1`: only the first is used, and no lease is that old
  local last = tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
  if last then
    -- 2 ms longer than the last lease: expiry has a resolution of 1 ms and uses a clock read earlier.
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    redis.call('PEXPIRE', key, milliseconds(math.ceil((last - now) / 1000) + 2))
  end
end

-- The extra values of a verdict: when enough leases have ended for this call to pass, and when the last one ends.
function concurrency.extra_reply(reply, set, key, now, spent, over, wanted, full)
  local leaving = spent + math.max(wanted, 0) - full
  -- equivalent: `now` -> `full`, `spent`: overwritten by a later time, or there is no holder
  reply[2], reply[3] = now, now
  if over then
    reply[2] = set.latest
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    -- equivalent: `-` -> `*`, `+`, `/`, `^`; `1` -> `0`: more leases are read than needed
    local leases = redis.call('ZRANGE', key, set.gone, set.gone + leaving - 1 + #set.order, 'WITHSCORES')
    for index = 1, #leases, 2 do
      if set.changed[leases[index]] == nil then
        leaving = leaving - 1
        -- equivalent: `==` -> `>=`: counts are never negative, indexes never beyond the end
        if leaving == 0 then
          reply[2] = math.min(tonumber(leases[index + 1]), set.latest)
        end
      end
    end
  end
  -- equivalent: `>` -> `~=`: a count is never negative
  -- equivalent: `spent` -> `now`; `>` -> `>=`; `0` -> `-1`: counts are never negative, indexes never beyond the end
  if spent > 0 then
    -- equivalent: `call` -> `pcall`: Redis accessed this key before without an error
    local leases = redis.call('ZREVRANGE', key, 0, #set.order, 'WITHSCORES')
    for index = 1, #leases, 2 do
      if set.changed[leases[index]] == nil then
        reply[3] = math.max(reply[3], math.min(tonumber(leases[index + 1]), set.latest))
      end
    end
    for _, name in ipairs(set.order) do
      if set.changed[name] then
        reply[3] = set.latest
      end
    end
  end
end
