package contenders;

import java.util.List;

/** What a type's batches are given to. */
interface Handler {
    void consume(List<Metric> batch);
}
