-- Bucket: the credits spent and the tick as of which, two doubles with whole numbers. The twin of bucket.rs.
local bucket = {}

-- The longest expiry in ms: Redis rejects longer ones.
local LIFE_MAX = 2 ^ 52

-- Returns what is spent as of now, and whether the stored value is current.
function bucket.load(key, now, deepest, tick, requests)
  local packed = redis.call('GET', key)
  if not packed then
    return 0, true
  end
  if #packed ~= 16 then
    error({err = 'ERR value is not a bucket'})
  end
  local spent, at = struct.unpack('<dd', packed)
  if not (spent >= 0 and at >= 0) then
    error({err = 'ERR value is not a bucket'})
  end
  spent = math.min(spent, deepest)
  local elapsed = math.floor(now / tick) - at
  if elapsed < 0 then
    -- From the future: the clock went back.
    return spent, false
  end
  return math.max(spent - elapsed * requests, 0), true
end

function bucket.keep(key, spent, fresh, now, tick, requests)
  -- equivalent: `==` -> `<=`: spent is never negative
  if spent == 0 then
    redis.call('DEL', key)
    return
  end
  -- 2 ms longer than the refill: expiry has a resolution of 1 ms and uses a clock read earlier.
  local life = math.min(math.ceil(math.ceil(spent / requests) * tick / 1000) + 2, LIFE_MAX)
  redis.call('SET', key, struct.pack('<dd', spent, math.floor(now / tick)), 'PX', milliseconds(life))
end
